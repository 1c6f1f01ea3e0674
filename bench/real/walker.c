/* Walks through memory at random in each step, as a look-up in a large table does; steps marked through gpuwhy.h.
 *
 *     walker FOLDER
 *
 * The first byte of FOLDER/does says how often the table is walked through more than once. */
#define _GNU_SOURCE
#include "gpuwhy.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TABLE = 3 << 20, ENTRIES = TABLE / 4, LOOKUPS = 100000, SUMS = 2000000 };

static uint32_t table[ENTRIES];

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleeps(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static char *in(const char *folder, const char *name) {
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0) exit(1);
    return path;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    sched_setaffinity(0, sizeof first, &first);
    int fd = open(in(words[1], "does"), O_RDONLY);
    volatile unsigned char *does = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    FILE *log = fopen(in(words[1], "steps"), "w");
    if (does == MAP_FAILED || !log) return 1;
    setlinebuf(log);
    /* One cycle through all entries, so that each look-up waits for the one before (Sattolo). */
    for (uint32_t i = 0; i < ENTRIES; i++) table[i] = i;
    for (uint32_t i = ENTRIES - 1; i > 0; i--) {
        uint32_t j = ((uint64_t)rand() << 16 ^ rand()) % i, swap = table[i];
        table[i] = table[j], table[j] = swap;
    }
    volatile uint64_t sink = 0;
    (void)sink;
    for (uint32_t at = 0;;) {
        int64_t began = now();
        struct gpuwhy_step step = gpuwhy_step_begin("step");
        for (int times = 0; times <= *does; times++)
            for (int i = 0; i < LOOKUPS; i++) at = table[at];
        sleeps(500);
        uint64_t sum = at;
        for (int i = 0; i < SUMS; i++) sum = sum * 0x100000001b3ull + i;
        sink = sum;
        gpuwhy_step_end(&step);
        fprintf(log, "%lld %lld\n", (long long)began, (long long)(now() - began));
        sleeps(3000);
    }
}
