/* What a wrapper by LD_PRELOAD costs at best: two readings of the clock around cuLaunchKernel and one
 * record of 64 bytes, in a ring of this process that nobody reads.
 *
 * cc -O2 -shared -fPIC hook.c -o hook.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef unsigned (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                              void **, void **);

enum { SLOTS = 1 << 14 };
static _Alignas(64) struct {
    _Atomic uint64_t sequence;
    uint64_t start, end, function, stream, grid, thread, code;
} ring[SLOTS];
static _Atomic uint64_t head;
static _Atomic(launch_fn) real;
static _Thread_local int me;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

unsigned cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **params, void **extra)
{
    launch_fn call = atomic_load_explicit(&real, memory_order_acquire);
    if (!call) {
        call = (launch_fn)dlsym(RTLD_NEXT, "cuLaunchKernel");
        atomic_store_explicit(&real, call, memory_order_release);
    }
    uint64_t start = now();
    unsigned code = call(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
    uint64_t end = now();
    uint64_t at = atomic_fetch_add_explicit(&head, 1, memory_order_relaxed);
    typeof(&ring[0]) slot = &ring[at % SLOTS];
    atomic_store_explicit(&slot->sequence, 0, memory_order_release);
    slot->start = start;
    slot->end = end;
    slot->function = (uint64_t)f;
    slot->stream = (uint64_t)stream;
    slot->grid = (uint64_t)gx << 32 | (uint64_t)gy << 16 | gz;
    slot->thread = (uint64_t)&me;
    slot->code = code;
    atomic_store_explicit(&slot->sequence, at + 1, memory_order_release);
    return code;
}
