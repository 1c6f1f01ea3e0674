/* The steps of torch_loop.py and uneven_loop.py, marked through the header that programs in C use. */
#include "gpuwhy.h"

static struct gpuwhy_step step;

void begin(int rank) {
    step = gpuwhy_step_begin("step");
    step.rank = rank, step.has_rank = 1;
}

void begin_sized(int rank, long long size) {
    begin(rank);
    step.size = size, step.has_size = 1;
}

void end(void) { gpuwhy_step_end(&step); }
