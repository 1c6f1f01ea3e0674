/* crates/wire/include/gpuwhy.h as a library for ctypes: steps and phases of one thread, in the ring that
 * GPUWHY_RING names.
 *
 * cc -O2 -shared -fPIC -I crates/wire/include mark.c -o libgpuwhy_mark.so */
#include "gpuwhy.h"

static _Thread_local struct gpuwhy_step step;
static _Thread_local struct gpuwhy_phase phase;

void mark_step(const char *name, unsigned rank, long size)
{
    step = gpuwhy_step_begin(name);
    step.rank = rank, step.has_rank = 1;
    step.size = size, step.has_size = 1;
    gpuwhy_step_open(&step);
}

void mark_step_end(void)
{
    gpuwhy_step_end(&step);
}

void mark_phase(const char *name)
{
    phase = gpuwhy_phase_begin(&step, name);
}

void mark_phase_end(void)
{
    gpuwhy_phase_end(&phase);
}
