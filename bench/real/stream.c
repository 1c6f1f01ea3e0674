/* Copies through more memory than caches hold, on the CPU whose number is given. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 256 << 20 };

int main(int count, char **words) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(count > 1 ? atoi(words[1]) : 1, &one);
    sched_setaffinity(0, sizeof one, &one);
    char *from = malloc(SIZE), *to = malloc(SIZE);
    if (!from || !to) return 1;
    memset(from, 1, SIZE);
    for (;;) {
        memcpy(to, from, SIZE);
        memcpy(from, to, SIZE);
    }
}
