/* Launches of a kernel whose blocks take different times, and what they computed.
 *
 *   uneven LOAD HOW COUNT
 *
 * LOAD  module, library.
 * HOW   each: parameters by their addresses.
 *       buffer: all in one buffer.
 *       config: by cuLaunchKernelEx, with a priority; cluster: with an attribute that speaks of the grid.
 *       full: blocks that leave no shared memory. few: 8 blocks, which all run at once; rows: blocks of 8 x 4 threads.
 *       graph: captured, and the graph is launched COUNT times.
 *       streams: each launch on a stream of its own, which is not destroyed; destroyed: which is, when its work is done.
 *       busy: which is destroyed at once.
 *       other: a kernel that may not steal.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

/* A thread adds up a number for each round; block n has n % 7 times as many rounds. The result lies at the place of the
 * thread in the grid. Some threads are done early. */
static const char *CODE =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry uneven(.param .u64 out, .param .u32 rounds) {\n"
    "    .reg .pred %p<3>;\n    .reg .b32 %r<20>;\n    .reg .b64 %rd<5>;\n"
    "    ld.param.u64 %rd1, [out];\n    ld.param.u32 %r1, [rounds];\n"
    "    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r3, %ctaid.y;\n    mov.u32 %r4, %nctaid.x;\n"
    "    mad.lo.u32 %r5, %r3, %r4, %r2;\n    mov.u32 %r6, %ntid.x;\n    mov.u32 %r7, %ntid.y;\n    mul.lo.u32 %r8, %r6, %r7;\n"
    "    mov.u32 %r9, %tid.x;\n    mov.u32 %r10, %tid.y;\n    mad.lo.u32 %r11, %r10, %r6, %r9;\n"
    "    mad.lo.u32 %r12, %r5, %r8, %r11;\n    mul.wide.u32 %rd2, %r12, 4;\n    add.s64 %rd3, %rd1, %rd2;\n"
    "    rem.u32 %r13, %r5, 7;\n    mul.lo.u32 %r13, %r13, %r1;\n    mov.u32 %r14, 0;\n"
    "    shr.u32 %r16, %r9, 5;\n    setp.gt.u32 %p2, %r16, 3;\n    @%p2 bra done;\n"
    "    activemask.b32 %r17;\n    vote.sync.any.pred %p2, %p2, -1;\n"
    "again:\n    setp.eq.u32 %p1, %r13, 0;\n    @%p1 bra done;\n    mad.lo.u32 %r14, %r14, 3, %r12;\n"
    "    sub.u32 %r13, %r13, 1;\n    bra again;\n"
    "done:\n    ld.global.u32 %r15, [%rd3];\n    add.u32 %r15, %r15, %r14;\n    add.u32 %r15, %r15, 1;\n"
    "    st.global.u32 [%rd3], %r15;\n    setp.gt.u32 %p1, %r11, 7;\n    @%p1 ret;\n    ret;\n}\n"
    ".visible .entry other(.param .u64 out, .param .u32 rounds) {\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<2>;\n    mov.u32 %r1, %tid.x;\n    setp.eq.u32 %p1, %r1, 5;\n"
    "    @%p1 ret;\n    bar.sync 0;\n    ret;\n}\n";

#define CHECK(call) \
    do { \
        unsigned code = (call); \
        if (code) { \
            printf("%s: %u\n", #call, code); \
            return 4; \
        } \
    } while (0)

/* cuLaunchKernelEx */
struct attribute { unsigned what; unsigned pad; unsigned char value[64]; };
struct config { unsigned grid[3], block[3], shared; handle stream; struct attribute *attributes; unsigned many; };

int main(int count, char **words) {
    if (count < 4) return 2;
    const char *how = words[2];
    int launches = atoi(words[3]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    unsigned (*init)(unsigned) = dlsym(driver, "cuInit");
    unsigned (*retain)(handle *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    unsigned (*set)(handle) = dlsym(driver, "cuCtxSetCurrent");
    unsigned (*wait)(void) = dlsym(driver, "cuCtxSynchronize");
    unsigned (*load)(handle *, const void *) = dlsym(driver, "cuModuleLoadData");
    unsigned (*find)(handle *, handle, const char *) = dlsym(driver, "cuModuleGetFunction");
    unsigned (*open)(handle *, const void *, int *, void **, unsigned, int *, void **, unsigned) =
        dlsym(driver, "cuLibraryLoadData");
    unsigned (*of)(handle *, handle, const char *) = dlsym(driver, "cuLibraryGetKernel");
    unsigned (*function)(handle *, handle) = dlsym(driver, "cuKernelGetFunction");
    unsigned (*allocate)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    unsigned (*to_device)(uint64_t, const void *, size_t) = dlsym(driver, "cuMemcpyHtoD_v2");
    unsigned (*to_host)(void *, uint64_t, size_t) = dlsym(driver, "cuMemcpyDtoH_v2");
    unsigned (*stream)(handle *, unsigned) = dlsym(driver, "cuStreamCreate");
    unsigned (*destroy)(handle) = dlsym(driver, "cuStreamDestroy_v2");
    unsigned (*capture)(handle, unsigned) = dlsym(driver, "cuStreamBeginCapture_v2");
    unsigned (*captured)(handle, handle *) = dlsym(driver, "cuStreamEndCapture");
    unsigned (*instantiate)(handle *, handle, unsigned long long) = dlsym(driver, "cuGraphInstantiateWithFlags");
    unsigned (*replay)(handle, handle) = dlsym(driver, "cuGraphLaunch");
    unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                       void **) = dlsym(driver, "cuLaunchKernel");
    unsigned (*launch_by)(const struct config *, handle, void **, void **) = dlsym(driver, "cuLaunchKernelEx");
    handle context, image, kernel, on = NULL, graph = NULL;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(set(context));
    const char *name = strcmp(how, "other") ? "uneven" : "other";
    if (!strcmp(words[1], "library")) {
        CHECK(open(&image, CODE, NULL, NULL, 0, NULL, NULL, 0));
        CHECK(of(&kernel, image, name));
        CHECK(function(&kernel, kernel));
    } else {
        CHECK(load(&image, CODE));
        CHECK(find(&kernel, image, name));
    }
    enum { BLOCKS = 150, THREADS = 32 };
    static uint32_t all[BLOCKS * THREADS];
    uint64_t out;
    CHECK(allocate(&out, sizeof all));
    CHECK(to_device(out, all, sizeof all));
    uint32_t rounds = 3;
    void *params[] = {&out, &rounds};
    struct { uint64_t out; uint32_t rounds; } both = {out, rounds};
    size_t bytes = 12;
    void *buffer[] = {(void *)1, &both, (void *)2, &bytes, NULL};
    int is_few = !strcmp(how, "few"), is_rows = !strcmp(how, "rows"), is_graph = !strcmp(how, "graph");
    int is_apart = !strcmp(how, "streams") || !strcmp(how, "destroyed") || !strcmp(how, "busy");
    /* One block at a time on a multiprocessor. */
    unsigned x = is_few ? 4 : 50, y = is_few ? 2 : 3, shared = strcmp(how, "full") ? 200000 : 227 << 10;
    if (is_graph) {
        CHECK(stream(&on, 1));
        CHECK(capture(on, 0));
        launches = 1;
    }
    for (int n = 0; n < launches; n++) {
        if (is_apart) CHECK(stream(&on, 1));
        if (!strcmp(how, "buffer")) {
            CHECK(launch(kernel, x, y, 1, THREADS, 1, 1, shared, on, NULL, buffer));
        } else if (!strcmp(how, "config") || !strcmp(how, "cluster")) {
            struct attribute attribute = {strcmp(how, "config") ? 4 : 8, 0, {1}};
            struct config config = {{x, y, 1}, {THREADS, 1, 1}, shared, on, &attribute, 1};
            CHECK(launch_by(&config, kernel, params, NULL));
        } else if (is_rows) {
            CHECK(launch(kernel, x, y, 1, 8, 4, 1, shared, on, params, NULL));
        } else {
            CHECK(launch(kernel, x, y, 1, THREADS, 1, 1, shared, on, params, NULL));
        }
        if (!strcmp(how, "destroyed")) CHECK(wait());
        if (is_apart && strcmp(how, "streams")) CHECK(destroy(on));
    }
    if (is_graph) {
        handle made;
        CHECK(captured(on, &graph));
        CHECK(instantiate(&made, graph, 0));
        for (int n = 0; n < atoi(words[3]); n++) CHECK(replay(made, on));
    }
    CHECK(wait());
    CHECK(to_host(all, out, sizeof all));
    uint64_t sum = 0;
    for (int n = 0; n < BLOCKS * THREADS; n++) sum = sum * 31 + all[n];
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
