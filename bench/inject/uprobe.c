/* What a uprobe costs the program that it is in, by the first instruction of the probed function: ns of CPU time
 * a call, bare, with a probe at the entry, and with probes at entry and return. It probes itself. The probes are
 * perf's, with a BPF program of our own that adds one to a counter, so that it is known that each call was hit.
 *
 * uprobe            all of it, one line of JSON
 * uprobe call NAME  only calls the function, for a recorder beside it; NAME is push, nop5 or endbr64
 *
 * cc -O2 uprobe.c -o uprobe */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 5000, CHUNKS = 11 };

__asm__(".text\n"
        ".globl probed_push\n.type probed_push,@function\nprobed_push:\n"
        "push %rbp\nmov %rsp,%rbp\nlea 1(%rdi),%rax\npop %rbp\nret\n.size probed_push,.-probed_push\n"
        ".globl probed_nop5\n.type probed_nop5,@function\nprobed_nop5:\n"
        ".byte 0x0f,0x1f,0x44,0,0\nlea 1(%rdi),%rax\nret\n.size probed_nop5,.-probed_nop5\n"
        ".globl probed_endbr64\n.type probed_endbr64,@function\nprobed_endbr64:\n"
        "endbr64\nlea 1(%rdi),%rax\nret\n.size probed_endbr64,.-probed_endbr64\n");
extern uint64_t probed_push(uint64_t), probed_nop5(uint64_t), probed_endbr64(uint64_t);

static const struct {
    const char *name;
    uint64_t (*call)(uint64_t);
} functions[] = {{"push", probed_push}, {"nop5", probed_nop5}, {"endbr64", probed_endbr64}};

static void fail(const char *what)
{
    fprintf(stderr, "uprobe: %s: %s\n", what, strerror(errno));
    exit(1);
}

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

/* The median chunk, ns a call. */
static double measure(uint64_t (*volatile call)(uint64_t))
{
    double took[CHUNKS];
    for (int chunk = -1; chunk < CHUNKS; chunk++) {
        uint64_t start = cpu(), sum = 0;
        for (int i = 0; i < CALLS; i++)
            sum = call(sum);
        if (sum != CALLS)
            fail("the function does not count");
        if (chunk >= 0)
            took[chunk] = (double)(cpu() - start) / CALLS;
    }
    qsort(took, CHUNKS, sizeof *took, by_size);
    return took[CHUNKS / 2];
}

static int bpf(int what, union bpf_attr *attr)
{
    return syscall(SYS_bpf, what, attr, sizeof *attr);
}

static int counter(void)
{
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};
    int fd = bpf(BPF_MAP_CREATE, &attr);
    if (fd < 0)
        fail("cannot make a BPF map");
    return fd;
}

static uint64_t count(int map)
{
    uint32_t key = 0;
    uint64_t value = 0;
    union bpf_attr attr = {.map_fd = map, .key = (uint64_t)&key, .value = (uint64_t)&value};
    if (bpf(BPF_MAP_LOOKUP_ELEM, &attr))
        fail("cannot read a BPF map");
    return value;
}

/* r2 = address of the counter; lock *r2 += 1; return 0 */
static int program(int map)
{
    struct bpf_insn code[] = {
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 2, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = map},
        {0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 1, .imm = 1},
        {.code = BPF_STX | BPF_DW | BPF_ATOMIC, .dst_reg = 2, .src_reg = 1, .imm = BPF_ADD},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_KPROBE,
                           .insns = (uint64_t)code,
                           .insn_cnt = sizeof code / sizeof *code,
                           .license = (uint64_t) "GPL"};
    int fd = bpf(BPF_PROG_LOAD, &attr);
    if (fd < 0)
        fail("cannot load a BPF program");
    return fd;
}

/* Where a function lies in our file. */
static uint64_t offset(void *function)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    while (maps && fgets(line, sizeof line, maps)) {
        uint64_t from, to, at;
        if (sscanf(line, "%lx-%lx %*s %lx", &from, &to, &at) == 3 && (uint64_t)function - from < to - from) {
            fclose(maps);
            return (uint64_t)function - from + at;
        }
    }
    fail("the function is not in /proc/self/maps");
    return 0;
}

static int attach(void *function, int at_return, int program)
{
    int type = 0;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!file || fscanf(file, "%d", &type) != 1)
        fail("this kernel has no uprobes for perf");
    fclose(file);
    struct perf_event_attr attr = {.type = type,
                                   .size = sizeof attr,
                                   .config = at_return,
                                   .sample_period = 1,
                                   .uprobe_path = (uint64_t) "/proc/self/exe",
                                   .probe_offset = offset(function)};
    int fd = syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        /* Of our process alone, where the whole machine is not allowed. */
        fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        fail("cannot open a uprobe");
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0))
        fail("cannot attach to a uprobe");
    return fd;
}

int main(int argc, char **argv)
{
    enum { FUNCTIONS = sizeof functions / sizeof *functions };
    if (argc == 3 && !strcmp(argv[1], "call")) {
        for (int i = 0; i < FUNCTIONS; i++)
            if (!strcmp(argv[2], functions[i].name)) {
                printf("{\"ns\":%.1f}\n", measure(functions[i].call));
                return 0;
            }
        return 2;
    }
    int map = counter(), code = program(map);
    for (int i = 0; i < FUNCTIONS; i++) {
        double bare = measure(functions[i].call);
        uint64_t before = count(map), calls = (uint64_t)CALLS * (CHUNKS + 1);
        int entry = attach(functions[i].call, 0, code);
        double at_entry = measure(functions[i].call);
        if (count(map) - before != calls)
            fail("not every call was hit at its entry");
        int ret = attach(functions[i].call, 1, code);
        double both = measure(functions[i].call);
        if (count(map) - before != 3 * calls)
            fail("not every call was hit at both ends");
        close(ret);
        close(entry);
        printf("%s\"%s\":{\"bare\":%.1f,\"entry\":%.1f,\"both\":%.1f}", i ? "," : "{", functions[i].name, bare, at_entry,
               both);
    }
    printf("}\n");
    return 0;
}
