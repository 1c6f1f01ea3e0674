/* Launches that queue, with many under way at a time.
 *
 *   queues HOW COUNT
 *
 * HOW  one: COUNT launches on one stream, of 12 ms each, ten of them at once and the others as they run, so that some ten are
 *      under way; the program waits for the last.
 *      two: every fourth launch is on a stream of its own, where nothing is before it, so that launches begin in another
 *      order than they were called in; and a launch of another kernel is behind each of those.
 *      steps: the program waits for each launch.
 *      unload: 5 ms each, and before the program waits another module, of which a kernel was launched, is unloaded.
 *      refused: 5 ms each, and every second launch is refused.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;

/* Each thread sleeps so many milliseconds. */
#define KERNEL(name) \
    ".visible .entry " name "(.param .u32 ms) {\n" \
    "    .reg .pred %p<2>;\n    .reg .b32 %r<2>;\n    ld.param.u32 %r1, [ms];\n" \
    "again:\n    nanosleep.u32 1000000;\n    sub.u32 %r1, %r1, 1;\n    setp.ne.u32 %p1, %r1, 0;\n    @%p1 bra again;\n" \
    "    ret;\n}\n"
static const char *CODE = ".version 7.0\n.target sm_70\n.address_size 64\n" KERNEL("first") KERNEL("second");

#define CHECK(call) \
    do { \
        unsigned code = (call); \
        if (code) { \
            printf("%s: %u\n", #call, code); \
            return 4; \
        } \
    } while (0)

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *how = words[1];
    int launches = atoi(words[2]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    unsigned (*init)(unsigned) = dlsym(driver, "cuInit");
    unsigned (*retain)(handle *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    unsigned (*set)(handle) = dlsym(driver, "cuCtxSetCurrent");
    unsigned (*wait)(void) = dlsym(driver, "cuCtxSynchronize");
    unsigned (*load)(handle *, const void *) = dlsym(driver, "cuModuleLoadData");
    unsigned (*unload)(handle) = dlsym(driver, "cuModuleUnload");
    unsigned (*find)(handle *, handle, const char *) = dlsym(driver, "cuModuleGetFunction");
    unsigned (*stream)(handle *, unsigned) = dlsym(driver, "cuStreamCreate");
    unsigned (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                       void **) = dlsym(driver, "cuLaunchKernel");
    handle context, module, first, second;
    CHECK(init(0));
    CHECK(retain(&context, 0));
    CHECK(set(context));
    CHECK(load(&module, CODE));
    CHECK(find(&first, module, "first"));
    CHECK(find(&second, module, "second"));
    int is_two = !strcmp(how, "two"), is_refused = !strcmp(how, "refused");
    for (int n = 0; n < launches; n++) {
        int is_one = !strcmp(how, "one");
        uint32_t ms = is_one ? 12 : 5;
        void *params[] = {&ms};
        handle on = NULL;
        int is_apart = is_two && n % 4 == 3;
        if (is_apart) CHECK(stream(&on, 1));
        CHECK(launch(first, 4, 1, 1, 32, 1, 1, 0, on, params, NULL));
        if (is_apart) CHECK(launch(second, 1, 1, 1, 32, 1, 1, 0, on, params, NULL));
        /* A stream that does not exist. */
        if (is_refused && n % 2 && !launch(first, 4, 1, 1, 32, 1, 1, 0, (handle)77, params, NULL)) return 5;
        if (is_one && n >= 10) usleep(10000);
        if (!strcmp(how, "steps")) CHECK(wait());
    }
    if (!strcmp(how, "unload")) {
        handle other, function;
        uint32_t ms = 1;
        void *params[] = {&ms};
        CHECK(load(&other, CODE));
        CHECK(find(&function, other, "second"));
        CHECK(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        CHECK(unload(other));
    }
    CHECK(wait());
    printf("%d launches\n", launches);
    return 0;
}
