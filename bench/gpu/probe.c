/* Kernels over the driver's interface, for scripts/gpu-probe-check.sh. Prints one JSON document.
 *
 *   probe vectors MODULE.ptx LIST
 *     Each kernel of LIST (lines: NAME RESULT MEMORY, in hexadecimal; `-` for no memory) with 1 thread and with 32, each
 *     on memory of its own.
 *   probe run MODULE KERNEL GRID BLOCK ROUNDS LAUNCHES WORDS PARAM...
 *     ROUNDS rounds of LAUNCHES launches and one wait: how long a launch took by the clock and of the caller's CPU, and the
 *     first WORDS words of 64 bits and a checksum of what each memory holds in the end. GRID and BLOCK: X or X,Y.
 *     PARAM: u32:N, f32:X, zeros:BYTES, random:COUNT (floats), uneven:COUNT (0 or, for a tenth of them and the last, 8).
 *   probe paging MODULE HOW WALKS ROOM MEMORY SLICE MS
 *     Walks through managed memory that may be larger than what is free on the device: how long the kernels of each walk
 *     took, us, and a checksum of what the memory holds in the end.
 *     HOW: walk (slice after slice) or kept (in each step three slices that are used always, and six of a walk). ROOM: MiB
 *     that are left free on the device, 0 for all. MEMORY: MiB of managed memory. SLICE: MiB a launch works on. MS: how
 *     long the program does something else after each step.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef uint64_t address;

static unsigned (*init)(unsigned), (*retain)(handle *, int), (*set)(handle), (*wait_all)(void);
static unsigned (*allocate)(address *, size_t), (*put)(address, const void *, size_t), (*get)(void *, address, size_t);
static unsigned (*managed)(address *, size_t, unsigned), (*fill)(address, unsigned char, size_t, handle);
static unsigned (*free_memory)(size_t *, size_t *);
static unsigned (*load)(handle *, const char *), (*find)(handle *, handle, const char *);
static unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                          void **);

static void check(unsigned code, const char *what) {
    if (!code) return;
    fprintf(stderr, "%s: CUresult %u\n", what, code);
    exit(4);
}
#define CHECK(call) check(call, #call)

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    struct {
        const char *name;
        void *to;
    } all[] = {{"cuInit", &init},           {"cuDevicePrimaryCtxRetain", &retain}, {"cuCtxSetCurrent", &set},
               {"cuCtxSynchronize", &wait_all}, {"cuMemAlloc_v2", &allocate},      {"cuMemcpyHtoD_v2", &put},
               {"cuMemcpyDtoH_v2", &get},   {"cuModuleLoad", &load},               {"cuModuleGetFunction", &find},
               {"cuLaunchKernel", &launch}, {"cuMemAllocManaged", &managed},       {"cuMemsetD8Async", &fill},
               {"cuMemGetInfo_v2", &free_memory}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *(void **)all[i].to = dlsym(driver, all[i].name);
    handle context;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(set(context));
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int hex(const char *text, unsigned char *to) {
    int bytes = 0;
    for (; text[0] && text[1] && text[0] != '-'; text += 2) {
        unsigned value;
        if (sscanf(text, "%2x", &value) != 1) break;
        to[bytes++] = value;
    }
    return bytes;
}

static int vectors(const char *module_path, const char *list_path) {
    enum { MOST = 1 << 16, LANES = 32 };
    static unsigned char first[MOST], memory[MOST * LANES];
    static char line[4 * MOST], name[256], bytes[3 * MOST];
    FILE *list = fopen(list_path, "r");
    if (!list) return 5;
    handle module, function;
    CHECK(load(&module, module_path));
    address at, results;
    CHECK(allocate(&at, MOST * LANES));
    CHECK(allocate(&results, 8 * LANES));
    int kernels = 0, right[2] = {0, 0}, wrong = 0;
    char wrongs[2000] = "";
    while (fgets(line, sizeof line, list)) {
        unsigned long long expected;
        if (sscanf(line, "%255s %llx %s", name, &expected, bytes) != 3) continue;
        size_t length = hex(bytes, first), stride = (length + 7) / 8 * 8;
        CHECK(find(&function, module, name));
        kernels++;
        for (int form = 0; form < 2; form++) {
            unsigned lanes = form ? LANES : 1;
            memset(memory, 0, stride * LANES + 8);
            /* That of thread 0 is the vector's; those of the others are the same, so that all end alike. */
            for (unsigned lane = 0; lane < lanes; lane++) memcpy(memory + lane * stride, first, length);
            CHECK(put(at, memory, stride * lanes + 8));
            address words[4] = {at, stride, length, results};
            void *params[] = {&words[0], &words[1], &words[2], &words[3]};
            CHECK(launch(function, 1, 1, 1, lanes, 1, 1, 0, NULL, params, NULL));
            CHECK(wait_all());
            unsigned long long found[LANES];
            CHECK(get(found, results, 8 * lanes));
            int same = 1;
            for (unsigned lane = 0; lane < lanes; lane++) same &= found[lane] == expected;
            right[form] += same;
            if (!same && strlen(wrongs) < sizeof wrongs - 300 && ++wrong)
                sprintf(wrongs + strlen(wrongs), "%s\"%s\"", wrong > 1 ? ", " : "", name);
        }
    }
    printf("{\"kernels\": %d, \"one_thread\": %d, \"a_warp\": %d, \"wrong\": [%s]}\n", kernels, right[0], right[1], wrongs);
    return 0;
}

static int run(int count, char **words) {
    handle module, function;
    CHECK(load(&module, words[0]));
    CHECK(find(&function, module, words[1]));
    unsigned grid[2] = {1, 1}, block[2] = {1, 1};
    sscanf(words[2], "%u,%u", &grid[0], &grid[1]);
    sscanf(words[3], "%u,%u", &block[0], &block[1]);
    int rounds = atoi(words[4]), launches = atoi(words[5]), show = atoi(words[6]);
    int many = count - 7;
    uint64_t *values = calloc(many, sizeof *values);
    size_t *sizes = calloc(many, sizeof *sizes);
    void **params = calloc(many, sizeof *params);
    for (int i = 0; i < many; i++) {
        const char *kind = words[7 + i], *value = strchr(kind, ':') + 1;
        params[i] = &values[i];
        if (!strncmp(kind, "u32", 3)) {
            values[i] = strtoul(value, NULL, 0);
        } else if (!strncmp(kind, "f32", 3)) {
            float number = atof(value);
            memcpy(&values[i], &number, sizeof number);
        } else {
            int is_random = !strncmp(kind, "random", 6), is_uneven = !strncmp(kind, "uneven", 6);
            sizes[i] = strtoull(value, NULL, 0) * (is_random || is_uneven ? 4 : 1);
            float *bytes = calloc(1, sizes[i] + 8);
            uint64_t state = 0x9e3779b97f4a7c15ull;
            for (size_t at = 0; is_random && at < sizes[i] / 4; at++) {
                state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                bytes[at] = (float)(state >> 40) / (1 << 23) - 1;
            }
            for (uint32_t at = 0, all = sizes[i] / 4; is_uneven && at < all; at++)
                ((uint32_t *)bytes)[at] = at + 1 == all || (at * 2654435761u >> 16) % 10 == 0 ? 8 : 0;
            CHECK(allocate(&values[i], sizes[i]));
            CHECK(put(values[i], bytes, sizes[i]));
            free(bytes);
        }
    }
#define LAUNCH() CHECK(launch(function, grid[0], grid[1], 1, block[0], block[1], 1, 0, NULL, params, NULL))
    LAUNCH();
    CHECK(wait_all());
    printf("{\"us\": [");
    double caller = 0;
    for (int round = 0; round < rounds; round++) {
        double began = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (int n = 0; n < launches; n++) LAUNCH();
        caller += seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        CHECK(wait_all());
        printf("%s%.4f", round ? ", " : "", (seconds(CLOCK_MONOTONIC) - began) / launches * 1e6);
    }
    printf("], \"caller_ns\": %.1f, \"memory\": [", caller / rounds / launches * 1e9);
    for (int i = 0, first = 1; i < many; i++) {
        if (!sizes[i]) continue;
        unsigned char *bytes = malloc(sizes[i] + 8);
        CHECK(get(bytes, values[i], sizes[i]));
        uint64_t sum = 14695981039346656037ull;
        for (size_t at = 0; at < sizes[i]; at++) sum = (sum ^ bytes[at]) * 1099511628211ull;
        printf("%s{\"sum\": \"%016llx\", \"words\": [", first ? "" : ", ", (unsigned long long)sum);
        for (int at = 0; at < show && (size_t)at < sizes[i] / 8; at++)
            printf("%s%llu", at ? ", " : "", (unsigned long long)((uint64_t *)bytes)[at]);
        printf("]}");
        first = 0;
        free(bytes);
    }
    printf("]}\n");
    return 0;
}

enum { MIB = 1 << 20, PAGE = 4096, BLOCK = 256, KEPT = 3, COLD = 6 };

/* Touches each page of a slice; how long that took, us. */
static double touch(handle function, address at, size_t bytes) {
    uint32_t many = bytes / PAGE;
    void *params[] = {&at, &many};
    double began = seconds(CLOCK_MONOTONIC);
    CHECK(launch(function, (many + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL));
    CHECK(wait_all());
    return (seconds(CLOCK_MONOTONIC) - began) * 1e6;
}

static int paging(char **words) {
    int is_kept = !strcmp(words[1], "kept"), walks = atoi(words[2]), ms = atoi(words[6]);
    size_t room = strtoull(words[3], NULL, 0) * MIB, memory = strtoull(words[4], NULL, 0) * MIB;
    size_t slice = strtoull(words[5], NULL, 0) * MIB, slices = slice ? memory / slice : 0;
    if (slices <= KEPT + COLD) return 2;
    handle module, function;
    CHECK(load(&module, words[0]));
    CHECK(find(&function, module, "touch"));
    if (room) {
        size_t is_free, all;
        address taken;
        CHECK(free_memory(&is_free, &all));
        if (is_free > room) CHECK(allocate(&taken, is_free - room));
    }
    address at;
    CHECK(managed(&at, memory, 1));
    CHECK(fill(at, 0, memory, NULL));
    CHECK(wait_all());
    printf("{\"us\": [");
    size_t next = KEPT;
    for (int n = 0; n < walks; n++) {
        double us = 0;
        if (is_kept) {
            for (int place = 0; place < 4 * KEPT; place++) us += touch(function, at + place % KEPT * slice, slice);
            for (int cold = 0; cold < COLD; cold++) {
                us += touch(function, at + next * slice, slice);
                next = next + 1 < slices ? next + 1 : KEPT;
            }
            usleep(1000 * ms);
        } else {
            for (size_t place = 0; place < slices; place++) {
                us += touch(function, at + place * slice, slice);
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

int main(int count, char **words) {
    open_driver();
    if (count == 4 && !strcmp(words[1], "vectors")) return vectors(words[2], words[3]);
    if (count >= 9 && !strcmp(words[1], "run")) return run(count - 2, words + 2);
    if (count == 9 && !strcmp(words[1], "paging")) return paging(words + 2);
    return 2;
}
