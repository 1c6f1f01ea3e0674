/* Loads an image of kernels and launches one of them, by one of the ways in which programs come to the driver.
 *
 *   loads WAY LOAD IMAGE KERNEL [DEVICES [LAUNCHES [END]]]
 *
 * WAY   linked: against libcuda.  dlsym: each function by its name.  asked: cuGetProcAddress, as CUDA's run time.
 * LOAD  module, moduleex, fatbinary, wrapper (a module by __cudaFatCudaBinary), file, library, libraryfile, graph,
 *       link, linkfile (linked with another part), unlinked (a link that is given up before)
 * END   exit, _exit, kill, unload, fork
 *
 * The kernel takes two pointers; what the second one points to afterwards is printed, device by device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *handle;
typedef uint64_t address;

#define FUNCTIONS(F) \
    F(cuInit, "cuInit", (unsigned)) \
    F(cuDeviceGet, "cuDeviceGet", (int *, int)) \
    F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (handle *, int)) \
    F(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", (int)) \
    F(cuCtxSetCurrent, "cuCtxSetCurrent", (handle)) \
    F(cuCtxSynchronize, "cuCtxSynchronize", (void)) \
    F(cuMemAlloc_v2, "cuMemAlloc", (address *, size_t)) \
    F(cuMemcpyHtoD_v2, "cuMemcpyHtoD", (address, const void *, size_t)) \
    F(cuMemcpyDtoH_v2, "cuMemcpyDtoH", (void *, address, size_t)) \
    F(cuModuleLoad, "cuModuleLoad", (handle *, const char *)) \
    F(cuModuleLoadData, "cuModuleLoadData", (handle *, const void *)) \
    F(cuModuleLoadDataEx, "cuModuleLoadDataEx", (handle *, const void *, unsigned, int *, void **)) \
    F(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", (handle *, const void *)) \
    F(cuModuleUnload, "cuModuleUnload", (handle)) \
    F(cuModuleGetFunction, "cuModuleGetFunction", (handle *, handle, const char *)) \
    F(cuLibraryLoadData, "cuLibraryLoadData", \
      (handle *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
    F(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", \
      (handle *, const char *, int *, void **, unsigned, int *, void **, unsigned)) \
    F(cuLibraryUnload, "cuLibraryUnload", (handle)) \
    F(cuLibraryGetKernel, "cuLibraryGetKernel", (handle *, handle, const char *)) \
    F(cuLinkCreate_v2, "cuLinkCreate", (unsigned, int *, void **, handle *)) \
    F(cuLinkAddData_v2, "cuLinkAddData", \
      (handle, int, void *, size_t, const char *, unsigned, int *, void **)) \
    F(cuLinkAddFile_v2, "cuLinkAddFile", (handle, int, const char *, unsigned, int *, void **)) \
    F(cuLinkComplete, "cuLinkComplete", (handle, void **, size_t *)) \
    F(cuLinkDestroy, "cuLinkDestroy", (handle)) \
    F(cuStreamCreate, "cuStreamCreate", (handle *, unsigned)) \
    F(cuStreamBeginCapture_v2, "cuStreamBeginCapture", (handle, unsigned)) \
    F(cuStreamEndCapture, "cuStreamEndCapture", (handle, handle *)) \
    F(cuGraphInstantiateWithFlags, "cuGraphInstantiate", (handle *, handle, uint64_t)) \
    F(cuGraphLaunch, "cuGraphLaunch", (handle, handle)) \
    F(cuLaunchKernel, "cuLaunchKernel", \
      (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))

#ifdef LINKED
#define DECLARE(name, asked, type) extern unsigned name type;
FUNCTIONS(DECLARE)
static void find(const char *way) { (void)way; }
#else
#define DECLARE(name, asked, type) static unsigned (*name) type;
FUNCTIONS(DECLARE)

static void find(const char *way) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(3);
    }
    unsigned (*ask)(const char *, void *, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    int status, is_asked = !strcmp(way, "asked");
#define FIND(name, asked, type) \
    if (is_asked) { \
        if (ask(asked, &name, 13000, 0, &status) || status) name = NULL; \
    } else \
        *(void **)&name = dlsym(driver, #name); \
    if (!name) { \
        fprintf(stderr, "no %s\n", asked); \
        exit(3); \
    }
    FUNCTIONS(FIND)
}
#endif

static void check(unsigned code, const char *what) {
    if (code) {
        printf("%s: %u\n", what, code);
        fflush(stdout);
        exit(4);
    }
}
#define CHECK(call) check(call, #call)

static char *contents(const char *path, size_t *bytes_read) {
    FILE *file = fopen(path, "rb");
    if (!file) exit(5);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *bytes = calloc(1, size + 64);
    if (fread(bytes, 1, size, file) != (size_t)size) exit(5);
    fclose(file);
    *bytes_read = size;
    return bytes;
}

/* Another kernel, which nobody launches. */
static char OTHER[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry other() {\n    ret;\n}\n";

/* What is linked from an image and another part; the link has ended, as Numba's has, when it is loaded. */
static void *linked(const char *load, char *image, size_t bytes, const char *path) {
    enum { PTX = 1, FATBINARY = 2 };
    size_t length = strlen(path);
    int kind = length > 4 && !strcmp(path + length - 4, ".ptx") ? PTX : FATBINARY;
    handle link;
    void *found, *copy;
    if (!strcmp(load, "unlinked")) {
        CHECK(cuLinkCreate_v2(0, NULL, NULL, &link));
        CHECK(cuLinkAddData_v2(link, kind, image, bytes + 1, path, 0, NULL, NULL));
        CHECK(cuLinkDestroy(link));
    }
    CHECK(cuLinkCreate_v2(0, NULL, NULL, &link));
    if (!strcmp(load, "linkfile"))
        CHECK(cuLinkAddFile_v2(link, kind, path, 0, NULL, NULL));
    else
        CHECK(cuLinkAddData_v2(link, kind, image, bytes + 1, path, 0, NULL, NULL));
    CHECK(cuLinkAddData_v2(link, PTX, OTHER, sizeof OTHER, "other", 0, NULL, NULL));
    CHECK(cuLinkComplete(link, &found, &bytes));
    copy = calloc(1, bytes + 64);
    memcpy(copy, found, bytes);
    CHECK(cuLinkDestroy(link));
    return copy;
}

int main(int count, char **words) {
    if (count < 5) return 2;
    const char *load = words[2], *path = words[3], *kernel = words[4];
    int devices = count > 5 ? atoi(words[5]) : 1, launches = count > 6 ? atoi(words[6]) : 1;
    const char *end = count > 7 ? words[7] : "exit";
    find(words[1]);
    CHECK(cuInit(0));
    size_t bytes;
    char *image = contents(path, &bytes);
    struct {
        unsigned magic, version;
        const void *data;
        void *name;
    } wrapper = {0x466243b1, 1, image, NULL};
    int is_library = !strncmp(load, "library", 7);
    handle library = NULL, module = NULL, function = NULL;
    for (int device = 0; device < devices; device++) {
        handle context, stream = NULL;
        int ordinal;
        CHECK(cuDeviceGet(&ordinal, device));
        CHECK(cuDevicePrimaryCtxRetain(&context, ordinal));
        CHECK(cuCtxSetCurrent(context));
        if (is_library && !library) {
            if (!strcmp(load, "library"))
                CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
            else
                CHECK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
            CHECK(cuLibraryGetKernel(&function, library, kernel));
        }
        if (!is_library) {
            if (!strcmp(load, "module") || !strcmp(load, "graph"))
                CHECK(cuModuleLoadData(&module, image));
            else if (!strcmp(load, "wrapper"))
                CHECK(cuModuleLoadData(&module, &wrapper));
            else if (!strcmp(load, "moduleex"))
                CHECK(cuModuleLoadDataEx(&module, image, 0, NULL, NULL));
            else if (!strcmp(load, "fatbinary"))
                CHECK(cuModuleLoadFatBinary(&module, image));
            else if (!strcmp(load, "file"))
                CHECK(cuModuleLoad(&module, path));
            else if (strstr(load, "link"))
                CHECK(cuModuleLoadData(&module, linked(load, image, bytes, path)));
            else
                return 2;
            CHECK(cuModuleGetFunction(&function, module, kernel));
        }
        float from[4] = {1, 2, 3, 4 + device}, to[4] = {0};
        address a, b;
        CHECK(cuMemAlloc_v2(&a, sizeof from));
        CHECK(cuMemAlloc_v2(&b, sizeof to));
        CHECK(cuMemcpyHtoD_v2(a, from, sizeof from));
        CHECK(cuMemcpyHtoD_v2(b, to, sizeof to));
        void *params[] = {&a, &b};
        int is_graph = !strcmp(load, "graph");
        handle graph = NULL, executable = NULL;
        if (is_graph) {
            CHECK(cuStreamCreate(&stream, 1));
            CHECK(cuStreamBeginCapture_v2(stream, 0));
            CHECK(cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, params, NULL));
            CHECK(cuStreamEndCapture(stream, &graph));
            CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
        }
        for (int launch = 0; launch < launches; launch++) {
            if (is_graph)
                CHECK(cuGraphLaunch(executable, stream));
            else
                CHECK(cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
        }
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH_v2(to, b, sizeof to));
        printf("device %d: %g %g %g %g\n", device, to[0], to[1], to[2], to[3]);
        if (!strcmp(end, "unload") && module) {
            CHECK(cuModuleUnload(module));
            CHECK(cuDevicePrimaryCtxRelease_v2(ordinal));
        }
    }
    if (!strcmp(end, "unload") && library) CHECK(cuLibraryUnload(library));
    fflush(stdout);
    if (!strcmp(end, "fork")) {
        pid_t child = fork();
        if (!child) exit(0);
        int status;
        waitpid(child, &status, 0);
        printf("child: %d\n", status);
    }
    if (!strcmp(end, "slow")) usleep(400000);
    if (!strcmp(end, "kill")) {
        usleep(400000);
        kill(getpid(), SIGKILL);
    }
    if (!strcmp(end, "_exit")) _exit(6);
    return 0;
}
