/* A program that launches kernels through a libcuda that it is linked with, and tells what a launch cost the
 * thread that launched, in ns of CPU time: the median of chunks, each of which is then waited for, unmeasured.
 *
 * launch real|refused CHUNKS < NAMES: real launches, of kernels of the names in turn; or calls that are refused
 * at once, because there is no such kernel: then a wrapper's cost does not drown in the stand-in's own.
 *
 * cc -O2 launch.c -o launch -Lwhere -l:libcuda.so.1 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern unsigned cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int),
    cuCtxSetCurrent(void *), cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *),
    cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *),
    cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);

enum { CHUNK = 500, NAMES = 512, MOST = 100000 };

static uint64_t cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void need(unsigned code, const char *what)
{
    if (code) {
        fprintf(stderr, "launch: %s: error %u\n", what, code);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static void *kernels[NAMES];
    static double took[MOST];
    int real = argc > 1 && !strcmp(argv[1], "real"), chunks = argc > 2 ? atoi(argv[2]) : 100, device, n = 0;
    if (chunks < 1 || chunks > MOST)
        return 2;
    void *context, *stream, *module;
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, 0), "cuDeviceGet");
    need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
    need(cuModuleLoadData(&module, "gpuwhy"), "cuModuleLoadData");
    char name[8192];
    while (n < NAMES && fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        need(cuModuleGetFunction(&kernels[n++], module, name), name);
    }
    if (!n)
        return 2;
    uint64_t work = 1000;
    void *params[] = {&work};
    for (int chunk = -3; chunk < chunks; chunk++) {
        uint64_t start = cpu();
        for (int i = 0; i < CHUNK; i++) {
            void *kernel = real ? kernels[i % n] : NULL;
            unsigned code = cuLaunchKernel(kernel, 132, 1, 1, 256, 1, 1, 0, stream, params, NULL);
            if ((code == 0) != real)
                need(code ? code : 1, "cuLaunchKernel");
        }
        if (chunk >= 0)
            took[chunk] = (double)(cpu() - start) / CHUNK;
        need(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    qsort(took, chunks, sizeof *took, by_size);
    printf("{\"ns\":%.1f}\n", took[chunks / 2]);
    return 0;
}
