/* Starts NVIDIA's own run time and prints whose functions it has kept: how many addresses in its memory lead into the
 * object that stands between, and how many into the driver. The run time is linked statically, or is a library. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

unsigned cudaGetDeviceCount(int *);

static uintptr_t kept[8][2], ours[2], driver[2];
static int many;

static int look(struct dl_phdr_info *object, size_t size, void *none) {
    (void)size, (void)none;
    int is_run_time = strstr(object->dlpi_name, "libcudart") != NULL || !object->dlpi_name[0];
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type != PT_LOAD) continue;
        if (is_run_time && (part->p_flags & PF_W) && many < 8) kept[many][0] = start, kept[many++][1] = end;
        uintptr_t *code = strstr(object->dlpi_name, "interpose") ? ours : strstr(object->dlpi_name, "libcuda.so") ? driver : NULL;
        if (code && (part->p_flags & PF_X)) code[0] = start, code[1] = end;
    }
    return 0;
}

static int within(const uintptr_t *code, uintptr_t value) { return value >= code[0] && value < code[1]; }

int main(void) {
    int devices = -1, of_ours = 0, of_driver = 0;
    unsigned code = cudaGetDeviceCount(&devices);
    dl_iterate_phdr(look, NULL);
    for (int i = 0; i < many; i++)
        for (uintptr_t at = (kept[i][0] + 7) & ~(uintptr_t)7; at + 8 <= kept[i][1]; at += 8) {
            uintptr_t value = *(uintptr_t *)at;
            of_ours += within(ours, value);
            of_driver += within(driver, value);
        }
    printf("%u %d %d\n", code, of_ours, of_driver);
    return 0;
}
