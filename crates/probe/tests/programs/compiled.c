/* A program as nvcc compiles it for a shared run time: two translation units, whose fat binaries lie in the program
 * and are registered before main. FIRST and SECOND name the files. */
#include <stddef.h>
#include <stdio.h>

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
unsigned __cudaPushCallConfiguration(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, void *);
unsigned cudaLaunch(const void *, void **);
unsigned cudaMalloc(void **, size_t);
unsigned cudaMemcpy(void *, const void *, size_t, int);
unsigned cudaDeviceSynchronize(void);

#define UNIT(name, file) \
    __asm__(".section .nv_fatbin,\"a\"\n.balign 8\n" #name ":\n.incbin \"" file "\"\n.previous\n"); \
    extern const char name[]; \
    static struct { int magic, version; const void *data; void *more; } name##_wrapper \
        __attribute__((section(".nvFatBinSegment"))) = {0x466243b1, 1, name, NULL};
UNIT(first, FIRST)
UNIT(second, SECOND)

static void **units[2];
static void copy(void) {}
static void zero(void) {}

__attribute__((constructor)) static void load(void) {
    units[0] = __cudaRegisterFatBinary(&first_wrapper);
    __cudaRegisterFunction(units[0], (const char *)copy, "copy", "_Z4copyPKfPf", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(units[0]);
    units[1] = __cudaRegisterFatBinary(&second_wrapper);
    __cudaRegisterFunction(units[1], (const char *)zero, "zero", "_Z4zeroPf", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(units[1]);
}
__attribute__((destructor)) static void unload(void) {
    __cudaUnregisterFatBinary(units[1]);
    __cudaUnregisterFatBinary(units[0]);
}

int main(void) {
    float from[4] = {1, 2, 3, 4}, to[4] = {9, 9, 9, 9};
    void *a, *b;
    unsigned code = cudaMalloc(&a, sizeof from) | cudaMalloc(&b, sizeof to);
    code |= cudaMemcpy(a, from, sizeof from, 1) | cudaMemcpy(b, to, sizeof to, 1);
    void *two[] = {&a, &b}, *one[] = {&a};
    __cudaPushCallConfiguration(4, 1, 1, 64, 1, 1, 0, NULL);
    code |= cudaLaunch((const void *)copy, two);
    __cudaPushCallConfiguration(1, 1, 1, 32, 1, 1, 0, NULL);
    code |= cudaLaunch((const void *)zero, one);
    code |= cudaDeviceSynchronize();
    code |= cudaMemcpy(from, a, sizeof from, 2) | cudaMemcpy(to, b, sizeof to, 2);
    printf("%u: %g %g\n", code, from[0], to[0]);
    return code != 0;
}
