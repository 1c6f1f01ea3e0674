/* What a program may do with dlsym that has nothing to do with GPUs; prints what it finds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    printf("strlen %d\n", dlsym(RTLD_DEFAULT, "strlen") != NULL);
    printf("cuInit %d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL);
    printf("cuModuleLoadData %d\n", dlsym(RTLD_DEFAULT, "cuModuleLoadData") != NULL);
    printf("missing %d\n", dlsym(RTLD_DEFAULT, "no_such_function") != NULL);
    printf("error %d\n", dlerror() != NULL);
    void *m = dlopen("libm.so.6", RTLD_NOW);
    double (*root)(double) = dlsym(m, "sqrt");
    printf("sqrt %g\n", root ? root(2.25) : 0);
    void *self = dlopen(NULL, RTLD_NOW);
    printf("main %d\n", dlsym(self, "puts") == dlsym(RTLD_DEFAULT, "puts"));
    printf("next %d\n", dlsym(RTLD_NEXT, "getppid") != NULL);
    printf("parent %d\n", getppid() > 0);
    return 0;
}
