// Counts its runs in an array that has more than a page.
#define ENTRIES 700
#include "../../../gpubpf/tests/programs/kernel_counts.bpf.c"
