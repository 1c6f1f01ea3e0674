/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device program of gpuwhy is written with: clang -O2 -g -target bpf -mcpu=v3.
 *
 * Maps and helpers have the numbers that bpftime uses where it has them, so that its programs compile
 * too. What is ours alone says so.
 */
#ifndef GPUWHY_PROBE_H
#define GPUWHY_PROBE_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) __typeof__(value) *name

/* Maps. */
#define GPU_HASH 1501             /* one value for each key that a thread has put there */
#define GPU_PER_THREAD_ARRAY 1502 /* one value for each key and thread of the grid */
#define GPU_ARRAY 1503            /* one value for each key */
#define GPU_KERNEL_SHARED_ARRAY 1504 /* the same, mapped into the host's kernel too */
#define GPU_RING 1527             /* records, a ring for each SM */
#define GPU_PER_SM_ARRAY 1540     /* ours: one value for each key and SM */
#define GPU_HOST_ARRAY 1542       /* ours: one value for each key, in memory of the host */
#define GPU_BLOCK_ARRAY 1541      /* ours: one sum for each key, in the shared memory of each block until it ends */

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2

/*
 * Where a program runs, by its section; KERNEL is a name or pattern (*, ?), mangled or as written.
 *
 *   kprobe/KERNEL                   where the kernel begins
 *   kretprobe/KERNEL                where its threads return
 *   kprobe/__memcapture             before loads, stores and atomics of global memory
 *   gpu/insn/WHAT[/KERNEL]          before instructions: loads, stores, atomics, accesses, barriers,
 *   gpu/insnret/WHAT[/KERNEL]       or a pattern of the opcode (ld.shared.*); insnret: after them
 *   gpu/line/FILE:LINE[/KERNEL]     before a source line
 *   gpu/tp/NAME[/KERNEL]            at a tracepoint of gpuwhy_tracepoint.h
 *   gpu/order/KERNEL                where a block of a kernel that steals work (--steal) asks for the next
 *                                   one; what the program returns is its number (x + X * (y + Y * z))
 *
 *   gpu/policy/alloc, /launch, /tick  on the host, in gpuwhy probe policy: a program that decides what the
 *                                   driver is asked for; below
 *
 * What the program's argument points to there:
 */
struct gpu_site { /* kprobe, kretprobe, gpu/line */
	__u64 site; /* the number of the place, as `gpuwhy probe splice --json` lists it */
};
struct gpu_access { /* __memcapture, gpu/insn, gpu/insnret */
	__u64 site;
	__u64 address; /* in its state space; 0 where the instruction has none */
	__u64 bytes;   /* of one thread */
	__u64 kind;    /* GPU_LOAD, GPU_STORE or GPU_ATOMIC, and the state space */
	__u64 loaded;  /* gpu/insnret: what was loaded, of a vector the last; 0 elsewhere. Whoever reads it waits for it */
};
struct gpu_tracepoint { /* gpu/tp */
	__u64 site;
	__u64 argument[8]; /* 0 where the tracepoint has fewer */
};

struct gpu_order { /* gpu/order */
	__u64 turn;    /* how many blocks were asked for before, from 0 */
	__u64 blocks;  /* how many there are */
	__u64 grid[3]; /* in x, y and z */
};

#define GPU_LOAD 1
#define GPU_STORE 2
#define GPU_ATOMIC 4
#define GPU_SPACE(kind) ((kind) >> 8 & 255)
#define GPU_GENERIC 0
#define GPU_GLOBAL 1
#define GPU_SHARED 2
#define GPU_LOCAL 3
#define GPU_CONST 4

/* Helpers. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_perf_event_output)(void *ctx, void *map, __u64 flags, void *data, __u64 size) = (void *)25;
static __u64 (*gpu_globaltimer)(void) = (void *)502;
static void (*gpu_block_idx)(__u64 *x, __u64 *y, __u64 *z) = (void *)503;
static void (*gpu_block_dim)(__u64 *x, __u64 *y, __u64 *z) = (void *)504;
static void (*gpu_thread_idx)(__u64 *x, __u64 *y, __u64 *z) = (void *)505;
static void (*gpu_membar_sys)(void) = (void *)506;
static void (*gpu_exit)(void) = (void *)507;
static void (*gpu_grid_dim)(__u64 *x, __u64 *y, __u64 *z) = (void *)508;
static __u64 (*gpu_sm_id)(void) = (void *)509;
static __u64 (*gpu_warp_id)(void) = (void *)510;
static __u64 (*gpu_lane_id)(void) = (void *)511;
static void (*gpu_prefetch_l2)(void *address) = (void *)512; /* ours */
static __u64 (*gpu_clock)(void) = (void *)518; /* ours: cycles of this SM */
static __u64 (*gpu_grid_id)(void) = (void *)513; /* ours: the number of the launch, in the order of launches */


/*
 * Policies (gpuwhy probe policy): they run in one thread on the host, beside the program whose kernels they watch. They have
 * arrays and hash maps of their own, and helpers 1 to 3, 502 and those below. An array that has the name of a device
 * program's array holds, at each tick, what that one held when it was copied last: the sum over SMs, contexts and images.
 */
struct gpu_policy_alloc { /* gpu/policy/alloc: memory was allocated, or is given back */
	__u64 number;  /* of the allocation in its process, from 1 */
	__u64 address;
	__u64 bytes;
	__u64 kind;    /* GPU_DEVICE_MEMORY or GPU_MANAGED_MEMORY */
	__u64 device;  /* the ordinal in the program */
	__u64 freed;   /* 1: given back */
};
struct gpu_policy_pointer {
	__u64 allocation; /* its number; 0 where there is no further pointer */
	__u64 base;       /* its first byte, */
	__u64 bytes;      /* how many it has, */
	__u64 offset;     /* and where the parameter points to, from there */
};
struct gpu_policy_launch { /* gpu/policy/launch: a kernel is about to be launched */
	__u64 number;   /* of the launch in its process, from 1 */
	__u64 kernel;   /* gpu_name() of its name as the image has it; 0 if that is not known */
	__u64 stream;   /* in the order in which they are created, from 1; 0 for default streams and others */
	__u64 grid[3], block[3];
	__u64 pointers; /* how many of the parameters point into managed memory; of the first four: */
	struct gpu_policy_pointer pointer[4];
};
struct gpu_policy_tick { /* gpu/policy/tick: ten times a second */
	__u64 time;   /* CLOCK_MONOTONIC, ns */
	__u64 number; /* from 0, which is before the process goes on with its first call */
	__u64 process; /* its pid; 0 if that is not known */
	__u64 program; /* gpu_name() of its name, as /proc/PID/comm has it */
};
#define GPU_DEVICE_MEMORY 1
#define GPU_MANAGED_MEMORY 2

/* Advice, with CUDA's numbers (CUmem_advise); the device is that on which the memory was allocated. */
#define GPU_READ_MOSTLY 1
#define GPU_NOT_READ_MOSTLY 2
#define GPU_PREFER_DEVICE 3
#define GPU_NO_PREFERENCE 4
#define GPU_ACCESSED 5
#define GPU_NOT_ACCESSED 6
#define GPU_PREFER_HOST 7 /* ours: CUDA's 3, with the host as the place */

/* What a policy asks for; 0, or -28 where one run asked for more than 1,024 actions. Of 0 bytes nothing is asked. */
static long (*gpu_ask_prefetch)(__u64 address, __u64 bytes) = (void *)514;
static long (*gpu_ask_advise)(__u64 address, __u64 bytes, __u64 advice) = (void *)515;
static long (*gpu_ask_delay)(__u64 kernel, __u64 us) = (void *)516;         /* kernel 0: of all; 0 us: no more */
static long (*gpu_ask_priority)(__u64 stream, __s64 priority) = (void *)517; /* of one that is created later; 0: all */

/*
 * For numbers below 2^63, without a branch: each branch in a loop would double the paths that the verifier follows.
 * gpu_keep has no text; it keeps the compiler from making a branch of a number, and a loop from ending by another number
 * than its own, of which the verifier would not know the bound.
 */
#define gpu_keep(number) __asm__ volatile("" : "+r"(number))
static __attribute__((always_inline)) inline __u64 gpu_below(__u64 a, __u64 b) /* 1 where a < b, and 0 */
{
	__u64 is = (a - b) >> 63;
	gpu_keep(is);
	return is;
}
static __attribute__((always_inline)) inline __u64 gpu_smaller(__u64 a, __u64 b)
{
	return b + ((a - b) & -gpu_below(a, b));
}
static __attribute__((always_inline)) inline __u64 gpu_larger(__u64 a, __u64 b)
{
	return a + ((b - a) & -gpu_below(a, b));
}

/* The number by which launches name a kernel, and ticks a program: FNV-1a of its name, at most 64 letters. */
static __attribute__((always_inline)) inline __u64 gpu_name(const char *name)
{
	__u64 hash = 0xcbf29ce484222325ULL;
#pragma clang loop unroll(full)
	for (int at = 0; at < 64; at++) {
		if (!name[at])
			break;
		hash = (hash ^ (__u8)name[at]) * 0x100000001b3ULL;
	}
	return hash;
}

#endif
