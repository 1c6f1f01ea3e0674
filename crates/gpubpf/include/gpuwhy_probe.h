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
static __u64 (*gpu_grid_id)(void) = (void *)513; /* ours: the number of the launch, in the order of launches */

#endif
