/* Steps of one launch each, over the driver, that become slow after a while.
 *
 *   uneven HOW STEPS FROM [USUAL [SLOW [BLOCKS]]]
 *
 * HOW  uneven: one block takes SLOW (12) ms, the others USUAL (4).  more: all of them take SLOW.  none: nothing changes.
 * Prints when the first slow step began, ns of CLOCK_MONOTONIC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "gpuwhy.h"

typedef void *handle;

/* Each thread sleeps so many milliseconds, those of block 5 another number. */
static const char *CODE =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry _Z4workjj(.param .u32 all, .param .u32 fifth) {\n"
    "    .reg .pred %p<3>;\n    .reg .b32 %r<5>;\n"
    "    ld.param.u32 %r1, [all];\n    ld.param.u32 %r2, [fifth];\n"
    "    mov.u32 %r3, %ctaid.x;\n    setp.eq.u32 %p1, %r3, 5;\n    selp.b32 %r4, %r2, %r1, %p1;\n"
    "again:\n    nanosleep.u32 1000000;\n    sub.u32 %r4, %r4, 1;\n    setp.ne.u32 %p2, %r4, 0;\n    @%p2 bra again;\n"
    "    ret;\n}\n";

#define CHECK(call) \
    do { \
        unsigned code = (call); \
        if (code) { \
            printf("%s: %u\n", #call, code); \
            return 4; \
        } \
    } while (0)

int main(int count, char **words) {
    if (count < 4) return 2;
    int steps = atoi(words[2]), from = atoi(words[3]);
    uint32_t usual = count > 4 ? atoi(words[4]) : 4, slow = count > 5 ? atoi(words[5]) : 12;
    unsigned blocks = count > 6 ? atoi(words[6]) : 16;
    int is_uneven = !strcmp(words[1], "uneven"), is_more = !strcmp(words[1], "more");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    unsigned (*init)(unsigned) = dlsym(driver, "cuInit");
    unsigned (*retain)(handle *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    unsigned (*set)(handle) = dlsym(driver, "cuCtxSetCurrent");
    unsigned (*wait)(void) = dlsym(driver, "cuCtxSynchronize");
    unsigned (*load)(handle *, const void *) = dlsym(driver, "cuModuleLoadData");
    unsigned (*find)(handle *, handle, const char *) = dlsym(driver, "cuModuleGetFunction");
    unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                       void **) = dlsym(driver, "cuLaunchKernel");
    handle context, module, function;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(set(context));
    CHECK(load(&module, CODE));
    CHECK(find(&function, module, "_Z4workjj"));
    for (int n = 0; n < steps; n++) {
        uint32_t all = is_more && n >= from ? slow : usual;
        uint32_t fifth = (is_more || is_uneven) && n >= from ? slow : usual;
        if (n == from) printf("slow from %llu\n", (unsigned long long)gpuwhy_now());
        void *params[] = {&all, &fifth};
        struct gpuwhy_step step = gpuwhy_step_begin("step");
        CHECK(launch(function, blocks, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        CHECK(wait());
        gpuwhy_step_end(&step);
    }
    return 0;
}
