/* SPDX-License-Identifier: Apache-2.0
 *
 * gpuwhy.h: reports the steps of a C or C++ program to gpuwhy. Nothing to link.
 *
 *     #include "gpuwhy.h"
 *
 *     struct gpuwhy_step step = gpuwhy_step_begin("step");
 *     step.rank = rank, step.has_rank = 1;
 *     step.size = batch, step.has_size = 1;
 *       struct gpuwhy_phase load = gpuwhy_phase_begin(&step, "load");
 *       ...
 *       gpuwhy_phase_end(&load);
 *     gpuwhy_step_end(&step);
 *
 * Records go to the ring of shared memory that the environment variable GPUWHY_RING names; without
 * it each call is a branch. No call blocks, allocates or fails; what finds the ring full is counted
 * there. All calls may be made from any thread, and after fork(2).
 *
 * The ring's layout and algorithm are those of the Rust crate gpuwhy-wire, which explains them;
 * tests/layout.txt there is the golden text of both. gcc or clang on a 64-bit little-endian Linux;
 * C11 or C++11. The __atomic builtins stand in for <stdatomic.h>, which C++ has only since C++23.
 */
#ifndef GPUWHY_H
#define GPUWHY_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if !defined(CLOCK_MONOTONIC) || !defined(MAP_ANONYMOUS)
#error "gpuwhy.h needs POSIX and mmap: compile by -std=gnu11, or with -D_GNU_SOURCE"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GPUWHY_MAGIC 0x4752594857555047ull /* "GPUWHYRG" */
#define GPUWHY_VERSION 2u
#define GPUWHY_HEADER_BYTES 4096u
#define GPUWHY_RECORD_WORDS 7u
#define GPUWHY_NAME_WORDS 15u
#define GPUWHY_NAME_BYTES 120u
#define GPUWHY_MAX_SLOTS (1u << 22)
#define GPUWHY_MAX_NAMES (1u << 16)
#define GPUWHY_NAME_CLAIMED 1u
#define GPUWHY_NAME_READY 2u
#define GPUWHY_TRIES 1000
#define GPUWHY_PROBES 64u

#define GPUWHY_STEP_OPEN 1u
#define GPUWHY_STEP 2u
#define GPUWHY_PHASE 3u
#define GPUWHY_MARK 4u
#define GPUWHY_COUNTER 5u
#define GPUWHY_LAUNCH 6u
#define GPUWHY_KERNEL 7u
#define GPUWHY_BATCH 16u
#define GPUWHY_BATCH_WORK 17u
#define GPUWHY_BATCH_CHANGE 18u
#define GPUWHY_BATCH_QUEUE 19u
#define GPUWHY_BATCH_OUTPUT 20u
#define GPUWHY_REQUEST 21u
#define GPUWHY_REQUEST_KEY 22u

#define GPUWHY_HAS_A 1u
#define GPUWHY_HAS_B 2u
#define GPUWHY_HAS_EXTRA 4u
#define GPUWHY_HAS_DEVICE 8u

/* The first page of a ring. */
struct gpuwhy_header {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_bytes;
    uint32_t slots;
    uint32_t names;
    uint32_t name_bytes;
    uint32_t reserved;
    uint64_t total_bytes;
    uint64_t created;
    uint64_t pad0[10];
    uint64_t head;
    uint64_t pad1[7];
    uint64_t lost;
    uint64_t late;
    uint64_t names_lost;
    uint64_t pad2[5];
    uint64_t tail;
    uint64_t lost_reported;
    uint64_t records;
    uint64_t torn;
    uint64_t abandoned;
    uint64_t pad3[3];
};

/* A place for one record. */
struct gpuwhy_slot {
    uint64_t sequence;
    uint64_t words[GPUWHY_RECORD_WORDS];
};

/* A place for one name. */
struct gpuwhy_name_entry {
    uint64_t state;
    uint64_t text[GPUWHY_NAME_WORDS];
};

/* What this process knows of its ring; one for all translation units. */
struct gpuwhy_client {
    int state; /* 0 not looked yet, 1 another thread is looking, 2 ring, 3 no ring */
    uint32_t slots;
    uint32_t names;
    char *base;
    uint64_t *wiped; /* a word that is 0 in every new process, or null */
};

__attribute__((weak)) struct gpuwhy_client gpuwhy_client_ = {0, 0, 0, 0, 0};

/* Pid and tid of the calling thread, valid while `key` is the process's. */
struct gpuwhy_thread {
    uint64_t key;
    uint32_t pid;
    uint32_t tid;
    uint64_t steps;
};

__attribute__((weak)) __thread struct gpuwhy_thread gpuwhy_thread_ = {0, 0, 0, 0};

static inline uint64_t gpuwhy_exact_(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#if defined(__x86_64__)
/* Extrapolating by the time-stamp counter from a reading of the clock that is at most a millisecond old:
 * src/clock.rs explains it. Rates are ns a tick, times 2^32. */
#define GPUWHY_CLOCK_BASE 4000000u
#define GPUWHY_CLOCK_REACH 1000000u
#define GPUWHY_CLOCK_TIGHT 2048u
#define GPUWHY_CLOCK_TRUST 3000u

struct gpuwhy_clock {
    uint64_t tsc;
    uint64_t ns;
    uint64_t rate;
    uint64_t reach; /* ticks after `tsc` for which it holds; 0 is not at all */
    uint64_t base_tsc;
    uint64_t base_ns;
    uint64_t last;
};

__attribute__((weak)) __thread struct gpuwhy_clock gpuwhy_clock_ = {0, 0, 0, 0, 0, 0, 0};
__attribute__((weak)) int gpuwhy_vouched_ = 0; /* 0 not asked yet, 1 yes, 2 no */
__attribute__((weak)) int gpuwhy_strikes_ = 0;

static inline uint64_t gpuwhy_apart_(uint64_t a, uint64_t b) {
    return a > b ? a - b : b - a;
}

/* Whether the kernel makes CLOCK_MONOTONIC of the counter. */
static inline int gpuwhy_kernel_vouches_(void) {
    char source[8] = {0};
    ssize_t n = -1;
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                  O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, source, sizeof source);
        close(fd);
    }
    return n >= 3 && memcmp(source, "tsc", 3) == 0 && (n == 3 || source[3] == '\n');
}

static inline void gpuwhy_distrust_(struct gpuwhy_clock *known) {
    known->rate = known->reach = known->base_tsc = 0;
    if (__atomic_fetch_add(&gpuwhy_strikes_, 1, __ATOMIC_RELAXED) >= 8)
        __atomic_store_n(&gpuwhy_vouched_, 2, __ATOMIC_RELAXED);
}

static inline void gpuwhy_learn_(struct gpuwhy_clock *known, uint64_t tsc, uint64_t ns) {
    uint64_t ticks = tsc - known->tsc, rate = known->rate, base_ticks, base_ns, whole;
    if (known->reach != 0 && ticks < 2 * known->reach &&
        gpuwhy_apart_(known->ns + ((ticks * rate) >> 32), ns) > GPUWHY_CLOCK_TRUST) {
        gpuwhy_distrust_(known);
        return;
    }
    known->tsc = tsc;
    known->ns = ns;
    base_ticks = tsc - known->base_tsc;
    base_ns = ns > known->base_ns ? ns - known->base_ns : 0;
    if (known->base_tsc == 0 || base_ns > (rate ? 25 : 250) * (uint64_t)GPUWHY_CLOCK_BASE) {
        known->base_tsc = tsc;
        known->base_ns = ns;
    } else if (base_ns >= GPUWHY_CLOCK_BASE) {
        /* base_ns * 2^32 fits: it is at most a second. */
        whole = base_ticks ? (base_ns << 32) / base_ticks : 0;
        if (rate != 0 && gpuwhy_apart_(whole, rate) > rate / 1000) {
            gpuwhy_distrust_(known);
            return;
        }
        known->rate = whole;
    }
    rate = known->rate;
    known->reach = rate >= (1ull << 32) / 20 && rate < 2ull << 32
                       ? ((uint64_t)GPUWHY_CLOCK_REACH << 32) / rate
                       : 0;
}

__attribute__((noinline)) static uint64_t gpuwhy_look_at_clock_(void) {
    uint64_t before, ns, between;
    int vouched = __atomic_load_n(&gpuwhy_vouched_, __ATOMIC_RELAXED);
    if (vouched == 0) {
        vouched = gpuwhy_kernel_vouches_() ? 1 : 2;
        __atomic_store_n(&gpuwhy_vouched_, vouched, __ATOMIC_RELAXED);
    }
    if (vouched != 1)
        return gpuwhy_exact_();
    before = __builtin_ia32_rdtsc();
    ns = gpuwhy_exact_();
    between = __builtin_ia32_rdtsc() - before;
    if (between <= GPUWHY_CLOCK_TIGHT)
        gpuwhy_learn_(&gpuwhy_clock_, before + between / 2, ns);
    return ns;
}

/* CLOCK_MONOTONIC, ns, to a tenth of a microsecond: the clock of every record. Never goes back
 * within a thread. */
static inline uint64_t gpuwhy_now(void) {
    struct gpuwhy_clock *known = &gpuwhy_clock_;
    uint64_t ticks = __builtin_ia32_rdtsc() - known->tsc;
    uint64_t now = ticks < known->reach ? known->ns + ((ticks * known->rate) >> 32)
                                        : gpuwhy_look_at_clock_();
    if (now < known->last)
        now = known->last;
    known->last = now;
    return now;
}
#else
/* CLOCK_MONOTONIC, ns: the clock of every record. */
static inline uint64_t gpuwhy_now(void) {
    return gpuwhy_exact_();
}
#endif

static inline struct gpuwhy_header *gpuwhy_header_(void) {
    return (struct gpuwhy_header *)(void *)gpuwhy_client_.base;
}

static inline struct gpuwhy_slot *gpuwhy_slot_(uint64_t position) {
    struct gpuwhy_slot *slots =
        (struct gpuwhy_slot *)(void *)(gpuwhy_client_.base + GPUWHY_HEADER_BYTES +
                                       gpuwhy_client_.names * sizeof(struct gpuwhy_name_entry));
    return &slots[position & (gpuwhy_client_.slots - 1)];
}

static inline struct gpuwhy_name_entry *gpuwhy_name_entry_(uint32_t index) {
    struct gpuwhy_name_entry *entries =
        (struct gpuwhy_name_entry *)(void *)(gpuwhy_client_.base + GPUWHY_HEADER_BYTES);
    return &entries[index & (gpuwhy_client_.names - 1)];
}

static inline int gpuwhy_is_power_(uint32_t n, uint32_t most) {
    return n >= 2 && n <= most && (n & (n - 1)) == 0;
}

/* Opens the ring at `path`; 1 if it is one. To be called before other calls, at most once; without
 * it they look at GPUWHY_RING. */
static inline int gpuwhy_open(const char *path) {
    struct stat st;
    uint64_t want;
    const struct gpuwhy_header *header;
    void *base, *page;
    int ok, fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)GPUWHY_HEADER_BYTES) {
        close(fd);
        return 0;
    }
    base = mmap(0, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return 0;
    header = (const struct gpuwhy_header *)base;
    ok = __atomic_load_n(&header->magic, __ATOMIC_ACQUIRE) == GPUWHY_MAGIC &&
         header->version == GPUWHY_VERSION &&
         header->slot_bytes == sizeof(struct gpuwhy_slot) &&
         header->name_bytes == sizeof(struct gpuwhy_name_entry);
    if (ok) {
        /* Read once: what is checked is what is used. */
        gpuwhy_client_.slots = __atomic_load_n(&header->slots, __ATOMIC_RELAXED);
        gpuwhy_client_.names = __atomic_load_n(&header->names, __ATOMIC_RELAXED);
        want = GPUWHY_HEADER_BYTES +
               (uint64_t)gpuwhy_client_.names * sizeof(struct gpuwhy_name_entry) +
               (uint64_t)gpuwhy_client_.slots * sizeof(struct gpuwhy_slot);
        ok = gpuwhy_is_power_(gpuwhy_client_.slots, GPUWHY_MAX_SLOTS) &&
             gpuwhy_is_power_(gpuwhy_client_.names, GPUWHY_MAX_NAMES) &&
             (uint64_t)st.st_size >= want;
    }
    if (!ok) {
        munmap(base, (size_t)st.st_size);
        return 0;
    }
    gpuwhy_client_.base = (char *)base;
    /* Wiped by the kernel in every child, however it was made (Linux 4.14). */
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, 4096, 18 /* MADV_WIPEONFORK */) == 0)
        gpuwhy_client_.wiped = (uint64_t *)page;
    __atomic_store_n(&gpuwhy_client_.state, 2, __ATOMIC_RELEASE);
    return 1;
}

__attribute__((noinline)) static int gpuwhy_look_(void) {
    const char *path;
    int state = 0;
    if (!__atomic_compare_exchange_n(&gpuwhy_client_.state, &state, 1, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_ACQUIRE))
        return state == 2; /* while another thread looks, this one's record is not written */
    path = getenv("GPUWHY_RING");
    if (path && *path && gpuwhy_open(path))
        return 1;
    __atomic_store_n(&gpuwhy_client_.state, 3, __ATOMIC_RELEASE);
    return 0;
}

/* Whether anybody listens. */
static inline int gpuwhy_is_on(void) {
    int state = __atomic_load_n(&gpuwhy_client_.state, __ATOMIC_ACQUIRE);
    return state == 2 || (state < 2 && gpuwhy_look_());
}

__attribute__((noinline)) static void gpuwhy_ask_(void) {
    uint64_t key = 0, fresh;
    uint32_t pid = (uint32_t)getpid(), tid = (uint32_t)syscall(SYS_gettid);
    if (gpuwhy_thread_.pid != pid || gpuwhy_thread_.tid != tid)
        gpuwhy_thread_.steps = 0;
    gpuwhy_thread_.pid = pid;
    gpuwhy_thread_.tid = tid;
    if (gpuwhy_client_.wiped) {
        fresh = (uint64_t)gpuwhy_thread_.pid << 32 | (gpuwhy_now() & 0xffffffffu) | 1;
        if (__atomic_compare_exchange_n(gpuwhy_client_.wiped, &key, fresh, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            key = fresh;
    }
    gpuwhy_thread_.key = key; /* 0 asks again next time */
}

static inline void gpuwhy_know_thread_(void) {
    uint64_t key =
        gpuwhy_client_.wiped ? __atomic_load_n(gpuwhy_client_.wiped, __ATOMIC_RELAXED) : 0;
    if (key == 0 || gpuwhy_thread_.key != key)
        gpuwhy_ask_();
}

static inline uint32_t gpuwhy_mix_(uint64_t sum) {
    return (uint32_t)(((sum ^ (sum >> 29)) * 0xbe5466cf34e90c6dull) >> 32);
}

/* The checksum of a record at a position. */
static inline uint32_t gpuwhy_check_(const uint64_t words[GPUWHY_RECORD_WORDS], uint64_t position) {
    return gpuwhy_mix_(position * 0x3f84d5b5b5470917ull + (words[0] >> 32) * 0x243f6a8885a308d3ull +
                       words[1] * 0x13198a2e03707345ull + words[2] * 0xa4093822299f31d1ull +
                       words[3] * 0x082efa98ec4e6c89ull + words[4] * 0x452821e638d01377ull +
                       words[5] * 0xbe5466cf34e90c6dull + words[6] * 0xc0ac29b7c97c50ddull);
}

/* Puts a record into the ring, or counts why not. */
static inline void gpuwhy_push_(uint64_t words[GPUWHY_RECORD_WORDS]) {
    struct gpuwhy_header *header = gpuwhy_header_();
    uint64_t position = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
    unsigned i, tries;
    for (tries = 0; tries < GPUWHY_TRIES; tries++) {
        struct gpuwhy_slot *slot = gpuwhy_slot_(position);
        uint64_t mine = position;
        int64_t ahead =
            (int64_t)(__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) - position);
        if (ahead < 0)
            break;
        if (ahead > 0) {
            position = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
            continue;
        }
        if (!__atomic_compare_exchange_n(&header->head, &position, position + 1, 1,
                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            continue;
        words[0] = (words[0] & ~0xffffffffull) | gpuwhy_check_(words, position);
        for (i = 0; i < GPUWHY_RECORD_WORDS; i++)
            __atomic_store_n(&slot->words[i], words[i], __ATOMIC_RELAXED);
        if (!__atomic_compare_exchange_n(&slot->sequence, &mine, position + 1, 0, __ATOMIC_RELEASE,
                                         __ATOMIC_RELAXED))
            __atomic_fetch_add(&header->late, 1, __ATOMIC_RELAXED);
        return;
    }
    __atomic_fetch_add(&header->lost, 1, __ATOMIC_RELAXED);
}

/* The number of a name in the ring, for the calls that end in _id; 0 if there is no place. */
static inline uint32_t gpuwhy_name(const char *name) {
    uint64_t text[GPUWHY_NAME_WORDS] = {0}, sum, head;
    size_t bytes;
    unsigned i, words, probe;
    uint32_t hash;
    if (!gpuwhy_is_on())
        return 0;
    bytes = strlen(name);
    if (bytes > GPUWHY_NAME_BYTES) {
        bytes = GPUWHY_NAME_BYTES;
        while (bytes && ((unsigned char)name[bytes] & 0xc0) == 0x80)
            bytes--; /* not within a character */
    }
    memcpy(text, name, bytes);
    words = (unsigned)(bytes + 7) / 8;
    sum = (uint64_t)bytes * 0x243f6a8885a308d3ull;
    for (i = 0; i < words; i++) {
        sum = (sum ^ text[i]) * 0x13198a2e03707345ull;
        sum ^= sum >> 32;
    }
    hash = gpuwhy_mix_(sum);
    head = (uint64_t)hash << 32 | (uint64_t)bytes << 8;
    for (probe = 0; probe < GPUWHY_PROBES && probe < gpuwhy_client_.names; probe++) {
        uint32_t index = (hash + probe) & (gpuwhy_client_.names - 1);
        struct gpuwhy_name_entry *entry = gpuwhy_name_entry_(index);
        uint64_t state = __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE);
        if (state == 0 &&
            __atomic_compare_exchange_n(&entry->state, &state, head | GPUWHY_NAME_CLAIMED, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            for (i = 0; i < words; i++)
                __atomic_store_n(&entry->text[i], text[i], __ATOMIC_RELAXED);
            __atomic_store_n(&entry->state, head | GPUWHY_NAME_READY, __ATOMIC_RELEASE);
            return index + 1;
        }
        if (state == (head | GPUWHY_NAME_READY)) {
            for (i = 0; i < words; i++)
                if (__atomic_load_n(&entry->text[i], __ATOMIC_RELAXED) != text[i])
                    break;
            if (i == words)
                return index + 1;
        }
    }
    __atomic_fetch_add(&gpuwhy_header_()->names_lost, 1, __ATOMIC_RELAXED);
    return 0;
}

static inline void gpuwhy_write_(uint64_t kind, uint64_t flags, uint16_t device, uint32_t name,
                                 uint32_t extra, uint64_t start, uint64_t dur, uint64_t a,
                                 uint64_t b) {
    uint64_t words[GPUWHY_RECORD_WORDS];
    gpuwhy_know_thread_();
    words[0] = kind << 32 | flags << 40 | (uint64_t)device << 48;
    words[1] = name | (uint64_t)extra << 32;
    words[2] = gpuwhy_thread_.pid | (uint64_t)gpuwhy_thread_.tid << 32;
    words[3] = start;
    words[4] = dur;
    words[5] = a;
    words[6] = b;
    gpuwhy_push_(words);
}

static inline uint64_t gpuwhy_bits_(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline int gpuwhy_is_finite_(double value) {
    return (gpuwhy_bits_(value) >> 52 & 0x7ff) != 0x7ff;
}

static inline uint64_t gpuwhy_since_(uint64_t start, uint64_t end) {
    return end > start ? end - start : 0;
}

/* A step that has begun. `size` is how much there is to do, in a unit of your own. */
struct gpuwhy_step {
    uint32_t name;
    uint32_t rank;
    int has_rank;
    int has_size;
    int64_t size;
    uint64_t seq;
    uint64_t start;
};

/* A part of a step that has begun. */
struct gpuwhy_phase {
    uint32_t name;
    int has_step;
    uint64_t step;
    uint64_t start;
};

/* Begins a step of the calling thread. */
static inline struct gpuwhy_step gpuwhy_step_begin_id(uint32_t name) {
    struct gpuwhy_step step = {0, 0, 0, 0, 0, 0, 0};
    if (gpuwhy_is_on()) {
        gpuwhy_know_thread_();
        step.name = name;
        step.seq = gpuwhy_thread_.steps++;
        step.start = gpuwhy_now();
    }
    return step;
}

static inline struct gpuwhy_step gpuwhy_step_begin(const char *name) {
    return gpuwhy_step_begin_id(gpuwhy_name(name));
}

static inline void gpuwhy_step_write_(const struct gpuwhy_step *step, uint64_t kind, uint64_t dur) {
    gpuwhy_write_(kind,
                  GPUWHY_HAS_A | (step->has_size ? GPUWHY_HAS_B : 0u) |
                      (step->has_rank ? GPUWHY_HAS_EXTRA : 0u),
                  0, step->name, step->has_rank ? step->rank : 0, step->start, dur, step->seq,
                  step->has_size ? (uint64_t)step->size : 0);
}

/* Writes that the step has begun, so that it is seen even if it never ends. */
static inline void gpuwhy_step_open(const struct gpuwhy_step *step) {
    if (gpuwhy_is_on())
        gpuwhy_step_write_(step, GPUWHY_STEP_OPEN, 0);
}

/* Ends a step. */
static inline void gpuwhy_step_end(const struct gpuwhy_step *step) {
    if (gpuwhy_is_on())
        gpuwhy_step_write_(step, GPUWHY_STEP, gpuwhy_since_(step->start, gpuwhy_now()));
}

/* Begins a phase of a step, or of none. */
static inline struct gpuwhy_phase gpuwhy_phase_begin_id(const struct gpuwhy_step *step,
                                                        uint32_t name) {
    struct gpuwhy_phase phase = {0, 0, 0, 0};
    if (gpuwhy_is_on()) {
        phase.name = name;
        phase.has_step = step != 0;
        phase.step = step ? step->seq : 0;
        phase.start = gpuwhy_now();
    }
    return phase;
}

static inline struct gpuwhy_phase gpuwhy_phase_begin(const struct gpuwhy_step *step,
                                                     const char *name) {
    return gpuwhy_phase_begin_id(step, gpuwhy_name(name));
}

/* Ends a phase. */
static inline void gpuwhy_phase_end(const struct gpuwhy_phase *phase) {
    if (gpuwhy_is_on())
        gpuwhy_write_(GPUWHY_PHASE, phase->has_step ? GPUWHY_HAS_A : 0, 0, phase->name, 0,
                      phase->start, gpuwhy_since_(phase->start, gpuwhy_now()), phase->step, 0);
}

/* Something happened now. */
static inline void gpuwhy_mark(const char *name) {
    if (gpuwhy_is_on())
        gpuwhy_write_(GPUWHY_MARK, 0, 0, gpuwhy_name(name), 0, gpuwhy_now(), 0, 0, 0);
}

/* Something happened now, with a number, which is left out if it is not finite. */
static inline void gpuwhy_mark_value(const char *name, double value) {
    if (gpuwhy_is_on() && !gpuwhy_is_finite_(value))
        gpuwhy_mark(name);
    else if (gpuwhy_is_on())
        gpuwhy_write_(GPUWHY_MARK, GPUWHY_HAS_A, 0, gpuwhy_name(name), 0, gpuwhy_now(), 0,
                      gpuwhy_bits_(value), 0);
}

/* A measurement in a UCUM unit, of a GPU of this process; `device` < 0 is the process. Left out if
 * it is not finite. */
static inline void gpuwhy_counter(const char *name, const char *unit, int device, double value) {
    if (gpuwhy_is_on() && gpuwhy_is_finite_(value))
        gpuwhy_write_(GPUWHY_COUNTER,
                      GPUWHY_HAS_A | GPUWHY_HAS_EXTRA | (device >= 0 ? GPUWHY_HAS_DEVICE : 0u),
                      (uint16_t)(device >= 0 ? device : 0), gpuwhy_name(name), gpuwhy_name(unit),
                      gpuwhy_now(), 0, gpuwhy_bits_(value), 0);
}

/* What a step of an engine that serves language models is made of; to be written before its end. */
struct gpuwhy_batch {
    uint64_t digest; /* of who is in it and where each stands: equal at the engine and its workers */
    uint32_t tokens, requests, prefill_tokens, prefill_requests;
    uint64_t context;
    uint32_t fresh, cached_tokens, preempted, drafts;
    uint32_t running, waiting, cache_ppm, allocate_ns;
};

static inline void gpuwhy_counts_(uint64_t kind, uint32_t step, uint64_t at, uint64_t a,
                                  uint64_t b) {
    gpuwhy_write_(kind, GPUWHY_HAS_A | GPUWHY_HAS_B | GPUWHY_HAS_EXTRA, 0, 0, step, at, 0, a, b);
}

static inline uint64_t gpuwhy_halves_(uint32_t low, uint32_t high) {
    return low | (uint64_t)high << 32;
}

/* `name` is the engine and its side: "mine engine". */
static inline void gpuwhy_batch_write(const struct gpuwhy_step *step, const char *name,
                                      const struct gpuwhy_batch *of) {
    uint32_t number = (uint32_t)step->seq;
    uint64_t at;
    if (!gpuwhy_is_on())
        return;
    at = gpuwhy_now();
    gpuwhy_write_(GPUWHY_BATCH, GPUWHY_HAS_A | GPUWHY_HAS_B | GPUWHY_HAS_EXTRA, 0,
                  gpuwhy_name(name), number, at, 0, of->digest,
                  gpuwhy_halves_(of->tokens, of->requests));
    gpuwhy_counts_(GPUWHY_BATCH_WORK, number, at,
                   gpuwhy_halves_(of->prefill_tokens, of->prefill_requests), of->context);
    gpuwhy_counts_(GPUWHY_BATCH_CHANGE, number, at, gpuwhy_halves_(of->fresh, of->cached_tokens),
                   gpuwhy_halves_(of->preempted, of->drafts));
    gpuwhy_counts_(GPUWHY_BATCH_QUEUE, number, at, gpuwhy_halves_(of->running, of->waiting),
                   gpuwhy_halves_(of->cache_ppm, of->allocate_ns));
}

/* What became of it: tokens with padding (0 if that is not known), tokens that requests got, drafts
 * that were kept and drafts that were made. */
static inline void gpuwhy_batch_output(const struct gpuwhy_step *step, uint32_t padded,
                                       uint32_t output_tokens, uint32_t accepted,
                                       uint32_t proposed) {
    if (gpuwhy_is_on())
        gpuwhy_counts_(GPUWHY_BATCH_OUTPUT, (uint32_t)step->seq, gpuwhy_now(),
                       gpuwhy_halves_(padded, output_tokens), gpuwhy_halves_(accepted, proposed));
}

/* A call that launched work on a stream of a GPU, from `start` to `end` (gpuwhy_now). */
static inline void gpuwhy_launch(const char *name, uint16_t device, uint32_t stream,
                                 uint64_t correlation, uint64_t start, uint64_t end) {
    if (gpuwhy_is_on())
        gpuwhy_write_(GPUWHY_LAUNCH, GPUWHY_HAS_A | GPUWHY_HAS_EXTRA | GPUWHY_HAS_DEVICE, device,
                      gpuwhy_name(name), stream, start, gpuwhy_since_(start, end), correlation, 0);
}

/* Work that ran on a stream of a GPU, from `start` to `end` (gpuwhy_now). */
static inline void gpuwhy_kernel(const char *name, uint16_t device, uint32_t stream,
                                 uint64_t correlation, uint64_t start, uint64_t end) {
    if (gpuwhy_is_on())
        gpuwhy_write_(GPUWHY_KERNEL, GPUWHY_HAS_A | GPUWHY_HAS_EXTRA | GPUWHY_HAS_DEVICE, device,
                      gpuwhy_name(name), stream, start, gpuwhy_since_(start, end), correlation, 0);
}

#ifdef __cplusplus
}
#endif

#endif /* GPUWHY_H */
