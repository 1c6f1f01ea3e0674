/* Walks through managed memory that is larger than what is free on the device, for scripts/gpu-probe-check.sh. Prints one
 * JSON document: how long the kernels of each walk took, us, and a checksum of what the memory holds in the end.
 *
 *   paging HOW WALKS ROOM MEMORY SLICE MS
 *
 * HOW     walk: slice after slice.  kept: in each step three slices that are used always, and six of a walk.
 * ROOM    MiB that are left free on the device; 0: nothing is taken.
 * MEMORY  MiB of managed memory.
 * SLICE   MiB a launch works on.
 * MS      how long the program does something else after each step.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef uint64_t address;

/* Adds 1 to the first word of each 4 KiB. */
static const char *CODE =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry touch(.param .u64 at, .param .u32 many) {\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<7>;\n    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [at];\n    ld.param.u32 %r1, [many];\n"
    "    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r3, %ntid.x;\n    mov.u32 %r4, %tid.x;\n"
    "    mad.lo.u32 %r5, %r2, %r3, %r4;\n    setp.ge.u32 %p1, %r5, %r1;\n    @%p1 bra done;\n"
    "    mul.wide.u32 %rd2, %r5, 4096;\n    add.s64 %rd3, %rd1, %rd2;\n"
    "    ld.global.u32 %r6, [%rd3];\n    add.u32 %r6, %r6, 1;\n    st.global.u32 [%rd3], %r6;\n"
    "done:\n    ret;\n}\n";

enum { MIB = 1 << 20, PAGE = 4096, BLOCK = 256, KEPT = 3, COLD = 6 };

#define CHECK(call) \
    do { \
        unsigned code = (call); \
        if (code) { \
            fprintf(stderr, "%s: CUresult %u\n", #call, code); \
            exit(4); \
        } \
    } while (0)

static unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
static unsigned (*wait)(void);
static handle touch;
static double us;

static double now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void work(address at, size_t bytes) {
    uint32_t many = bytes / PAGE;
    void *params[] = {&at, &many};
    double began = now();
    CHECK(launch(touch, (many + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL));
    CHECK(wait());
    us += now() - began;
}

int main(int count, char **words) {
    if (count != 7) return 2;
    int walks = atoi(words[2]), ms = atoi(words[6]), is_kept = !strcmp(words[1], "kept");
    size_t room = strtoull(words[3], NULL, 0) * MIB, memory = strtoull(words[4], NULL, 0) * MIB;
    size_t slice = strtoull(words[5], NULL, 0) * MIB, slices = slice ? memory / slice : 0;
    if (slices <= KEPT + COLD) return 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    unsigned (*init)(unsigned) = dlsym(driver, "cuInit");
    unsigned (*retain)(handle *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    unsigned (*current)(handle) = dlsym(driver, "cuCtxSetCurrent");
    unsigned (*load)(handle *, const void *) = dlsym(driver, "cuModuleLoadData");
    unsigned (*find)(handle *, handle, const char *) = dlsym(driver, "cuModuleGetFunction");
    unsigned (*free_memory)(size_t *, size_t *) = dlsym(driver, "cuMemGetInfo_v2");
    unsigned (*allocate)(address *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    unsigned (*managed)(address *, size_t, unsigned) = dlsym(driver, "cuMemAllocManaged");
    unsigned (*set)(address, unsigned char, size_t, handle) = dlsym(driver, "cuMemsetD8Async");
    unsigned (*get)(void *, address, size_t) = dlsym(driver, "cuMemcpyDtoH_v2");
    launch = dlsym(driver, "cuLaunchKernel");
    wait = dlsym(driver, "cuCtxSynchronize");
    handle context, module;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(current(context));
    CHECK(load(&module, CODE));
    CHECK(find(&touch, module, "touch"));
    if (room) {
        size_t is_free, all;
        address taken;
        CHECK(free_memory(&is_free, &all));
        if (is_free > room) CHECK(allocate(&taken, is_free - room));
    }
    address at;
    CHECK(managed(&at, memory, 1));
    CHECK(set(at, 0, memory, NULL));
    CHECK(wait());
    printf("{\"us\": [");
    size_t next = KEPT;
    for (int n = 0; n < walks; n++) {
        us = 0;
        if (is_kept) {
            for (int round = 0; round < 4; round++)
                for (int kept = 0; kept < KEPT; kept++) work(at + kept * slice, slice);
            for (int cold = 0; cold < COLD; cold++) {
                work(at + next * slice, slice);
                next = next + 1 < slices ? next + 1 : KEPT;
            }
            usleep(1000 * ms);
        } else {
            for (size_t place = 0; place < slices; place++) {
                work(at + place * slice, slice);
                usleep(1000 * ms);
            }
        }
        printf("%s%.1f", n ? ", " : "", us);
    }
    uint64_t sum = 0;
    for (size_t place = 0; place < slices; place++) {
        uint32_t word;
        CHECK(get(&word, at + place * slice, sizeof word));
        sum += (uint64_t)word * (place + 1);
    }
    printf("], \"sum\": %llu}\n", (unsigned long long)sum);
    return 0;
}
