/* Launches kernels that walk through managed memory, which may be larger than the device.
 *
 *   managed HOW [MS]
 *
 * HOW  slices: a walk through 64 MiB, 2 MiB a launch.           segments: through two times 40 MiB, 4 MiB a launch.
 *      columns: each third 2 MiB of 96 MiB, three times.         layers: each second 2 MiB of 80 MiB, from the end, twice.
 *      cache: 3 regions of 2 MiB in each step, and 6 of a walk.  lists: the same with 2 that lie apart, and 7 of a walk.
 *      random: 2 MiB of 64 MiB, in no order.
 *      streams: two streams, and their priorities.               device: memory of the device alone, and managed memory.
 * MS   how long the program does something else after each step; 40.
 *
 * Printed is what the memory holds in the end.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef uint64_t address;

/* Adds 1 to the first word of `many` places, `stride` bytes apart. */
static const char *CODE =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 at, .param .u32 many, .param .u64 stride) {\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<5>;\n    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [at];\n    ld.param.u32 %r1, [many];\n    ld.param.u64 %rd2, [stride];\n"
    "    mov.u32 %r2, %tid.x;\n    mul.wide.u32 %rd3, %r2, 4;\n    add.s64 %rd1, %rd1, %rd3;\n"
    "again:\n    ld.global.u32 %r3, [%rd1];\n    add.u32 %r3, %r3, 1;\n    st.global.u32 [%rd1], %r3;\n"
    "    add.s64 %rd1, %rd1, %rd2;\n    sub.u32 %r1, %r1, 1;\n    setp.ne.u32 %p1, %r1, 0;\n    @%p1 bra again;\n"
    "    ret;\n}\n";

#define CHECK(call) \
    do { \
        unsigned code = (call); \
        if (code) { \
            printf("%s: %u\n", #call, code); \
            exit(4); \
        } \
    } while (0)

enum { PAGE = 2 << 20 };

static unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
static unsigned (*managed)(address *, size_t, unsigned);
static unsigned (*set)(address, unsigned char, size_t, handle);
static unsigned (*get)(void *, address, size_t);
static unsigned (*release)(address);
static unsigned (*wait)(void);
static handle add;
static int ms = 40;

static address memory(int pages) {
    address at;
    CHECK(managed(&at, (size_t)pages * PAGE, 1));
    CHECK(set(at, 0, (size_t)pages * PAGE, NULL));
    return at;
}

static void work(address at, uint32_t many, uint64_t stride) {
    void *params[] = {&at, &many, &stride};
    CHECK(launch(add, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

static void step(void) {
    CHECK(wait());
    usleep(1000 * ms);
}

/* What the first words of all pages add up to, each times its place. */
static void tell(const char *name, address at, int pages) {
    uint64_t sum = 0;
    for (int page = 0; page < pages; page++) {
        uint32_t word;
        CHECK(get(&word, at + (address)page * PAGE, sizeof word));
        sum += (uint64_t)word * (page + 1);
    }
    printf("%s: %llu\n", name, (unsigned long long)sum);
    CHECK(release(at));
}

static void walk(int allocations, int pages, int first, int by, int many, int rounds) {
    for (int n = 0; n < allocations; n++) {
        address at = memory(pages);
        for (int round = 0; round < rounds; round++) {
            int from = by > 0 ? first + round : first - round;
            for (int page = from; page >= 0 && page + many <= pages; page += by) {
                work(at + (address)page * PAGE, many, PAGE);
                step();
            }
        }
        tell("walked", at, pages);
    }
}

/* In each step the pages that are used always, and some of a walk through the others. */
static void kept(int steps, const int *hot, int hots, int cold) {
    enum { PAGES = 32 };
    address at = memory(PAGES);
    int next = 8;
    for (int n = 0; n < steps; n++) {
        for (int round = 0; round < 4; round++)
            for (int page = 0; page < hots; page++) work(at + (address)hot[page] * PAGE, 1, 0);
        for (int page = 0; page < cold; page++) {
            work(at + (address)next * PAGE, 1, 0);
            next = next + 1 < PAGES ? next + 1 : 8;
        }
        step();
    }
    tell("kept", at, PAGES);
}

static void by_chance(int steps) {
    address at = memory(32);
    uint32_t state = 12345;
    for (int n = 0; n < steps; n++) {
        state = state * 1664525 + 1013904223;
        work(at + (address)(state >> 27) * PAGE, 1, 0);
        step();
    }
    tell("random", at, 32);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    const char *how = words[1];
    if (count > 2) ms = atoi(words[2]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    unsigned (*init)(unsigned) = dlsym(driver, "cuInit");
    unsigned (*retain)(handle *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    unsigned (*current)(handle) = dlsym(driver, "cuCtxSetCurrent");
    unsigned (*load)(handle *, const void *) = dlsym(driver, "cuModuleLoadData");
    unsigned (*find)(handle *, handle, const char *) = dlsym(driver, "cuModuleGetFunction");
    unsigned (*stream)(handle *, unsigned) = dlsym(driver, "cuStreamCreate");
    unsigned (*prior)(handle *, unsigned, int) = dlsym(driver, "cuStreamCreateWithPriority");
    unsigned (*priority)(handle, int *) = dlsym(driver, "cuStreamGetPriority");
    unsigned (*allocate)(address *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    launch = dlsym(driver, "cuLaunchKernel");
    managed = dlsym(driver, "cuMemAllocManaged");
    set = dlsym(driver, "cuMemsetD8Async");
    get = dlsym(driver, "cuMemcpyDtoH_v2");
    release = dlsym(driver, "cuMemFree_v2");
    wait = dlsym(driver, "cuCtxSynchronize");
    handle context, module, first, second;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(current(context));
    CHECK(load(&module, CODE));
    CHECK(find(&add, module, "add"));
    if (!strcmp(how, "slices")) walk(1, 32, 0, 1, 1, 1);
    if (!strcmp(how, "segments")) walk(2, 20, 0, 2, 2, 1);
    if (!strcmp(how, "columns")) walk(1, 48, 0, 3, 1, 3);
    if (!strcmp(how, "layers")) walk(1, 40, 39, -2, 1, 2);
    if (!strcmp(how, "cache")) kept(40, (int[]){0, 1, 2}, 3, 6);
    if (!strcmp(how, "lists")) kept(40, (int[]){1, 6}, 2, 7);
    if (!strcmp(how, "random")) by_chance(40);
    if (!strcmp(how, "streams")) {
        int priorities[2];
        CHECK(stream(&first, 1));
        CHECK(prior(&second, 1, -1));
        CHECK(priority(first, &priorities[0]));
        CHECK(priority(second, &priorities[1]));
        printf("priorities: %d %d\n", priorities[0], priorities[1]);
    }
    if (!strcmp(how, "device")) {
        address only, at = memory(2);
        CHECK(allocate(&only, PAGE));
        CHECK(set(only, 0, PAGE, NULL));
        step();
        work(at, 2, PAGE);
        work(only, 1, 0);
        for (int n = 0; n < 5; n++) step();
        tell("managed", at, 2);
        tell("device", only, 1);
    }
    return 0;
}
