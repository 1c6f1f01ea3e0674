/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The few kernel types that the probes read, instead of a vmlinux.h of 2.8 MB.
 *
 * Only members that are read are declared; CO-RE finds their real offsets at load time. A member
 * that not every kernel has is read behind bpf_core_field_exists. Names with three underscores
 * are flavours: the same kernel type in another version.
 */
#ifndef GPUWHY_KERNEL_H
#define GPUWHY_KERNEL_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define CORE __attribute__((preserve_access_index))

#define TASK_COMM_LEN 16
#define PF_KTHREAD 0x00200000

struct kernfs_node {
	__u64 id;
} CORE;

struct cgroup {
	struct kernfs_node *kn;
} CORE;

struct css_set {
	struct cgroup *dfl_cgrp;
} CORE;

struct rq {
	__u64 clock;
} CORE;

/* With CONFIG_PARAVIRT_TIME_ACCOUNTING: ns that the hypervisor took from this CPU. */
struct rq___steal {
	__u64 prev_steal_time_rq;
} CORE;

struct cfs_rq {
	struct rq *rq;
	int throttle_count;
} CORE;

/* Since 6.6: how long tasks of this queue have been out of quota, on this CPU. */
struct cfs_rq___self {
	struct rq *rq;
	__u64 throttled_clock_self;
	__u64 throttled_clock_self_time;
} CORE;

struct task_group {
	struct cfs_rq **cfs_rq;
} CORE;

struct sched_entity {
	struct cfs_rq *cfs_rq;
} CORE;

struct thread_info {
	__u32 cpu;
} CORE;

struct task_struct {
	struct thread_info thread_info;
	int on_rq;
	int pid;
	int tgid;
	unsigned int __state;
	unsigned int flags;
	unsigned in_iowait : 1;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct css_set *cgroups;
	struct sched_entity se;
	struct task_group *sched_task_group;
	__u64 start_boottime;
	unsigned long min_flt;
	unsigned long maj_flt;
	char comm[TASK_COMM_LEN];
} CORE;

/* x86: where a thread's own variables lie, which is what glibc and musl use for its pthread_self(). */
struct thread_struct___x86 {
	unsigned long fsbase;
} CORE;

struct task_struct___x86 {
	struct thread_struct___x86 thread;
} CORE;

/* Before 5.14. */
struct task_struct___state_long {
	long state;
} CORE;

/* Before 5.16, where thread_info has no cpu. */
struct task_struct___cpu {
	unsigned int cpu;
} CORE;

/* Since 6.18 tasks are throttled one by one instead of whole queues. */
struct task_struct___throttled {
	bool throttled;
} CORE;

/* The number of the system call that a task is in, and its first arguments: x86 and arm64. */
struct pt_regs___x86 {
	unsigned long orig_ax;
	unsigned long di;
	unsigned long si;
} CORE;

struct pt_regs___arm64 {
	__u64 regs[31];
	__s32 syscallno;
} CORE;

#endif
