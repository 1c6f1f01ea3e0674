/* Marks as a C program makes them. `other` is in another file, to see that they share a client. */
#include <stdio.h>
#include <sys/wait.h>

#include "gpuwhy.h"

#ifdef __cplusplus
extern "C"
#endif
void other(const struct gpuwhy_step *step);

int main(void) {
    uint64_t start = gpuwhy_now();
    struct gpuwhy_step step = gpuwhy_step_begin("step");
    struct gpuwhy_batch batch;
    step.size = 4096;
    step.has_size = 1;
    step.rank = 3;
    step.has_rank = 1;
    gpuwhy_step_open(&step);
    other(&step);
    gpuwhy_mark("begun");
    gpuwhy_mark_value("loss", 0.25);
    gpuwhy_mark_value("nan", 0.0 / 0.0);
    gpuwhy_counter("sm_clock", "MHz", 1, 1410);
    gpuwhy_counter("queue", "1", -1, 7);
    gpuwhy_counter("nan", "1", -1, 0.0 / 0.0);
    gpuwhy_launch("gemm", 1, 7, 42, start, start + 5);
    gpuwhy_kernel("gemm", 1, 7, 42, start + 10, start + 30);
    batch.digest = 77;
    batch.tokens = 20;
    batch.requests = 3;
    batch.prefill_tokens = 18;
    batch.prefill_requests = 1;
    batch.context = 1ull << 33;
    batch.fresh = 1;
    batch.cached_tokens = 16;
    batch.preempted = 2;
    batch.drafts = 4;
    batch.running = 5;
    batch.waiting = 6;
    batch.cache_ppm = 500000;
    batch.allocate_ns = 900;
    gpuwhy_batch_write(&step, "mine engine", &batch);
    gpuwhy_batch_output(&step, 32, 3, 1, 7);
    gpuwhy_step_end(&step);
    step = gpuwhy_step_begin("step");
    gpuwhy_step_end(&step);

    fflush(stdout);
    if (fork() == 0) {
        step = gpuwhy_step_begin("child");
        gpuwhy_step_end(&step);
        printf("%d\n", (int)getpid());
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    printf("%d %d\n", (int)getpid(), gpuwhy_is_on());
    return 0;
}
