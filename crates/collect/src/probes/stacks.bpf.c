// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Stacks of whatever runs, from a timer's interrupt, and of threads of targets as they go to sleep. Attached during
 * incidents only.
 */
#include "gpuwhy.h"
#include "call_budget.h"
#include "python.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define KERNEL_DEPTH 16
#define USER_DEPTH 32

/* Shorter sleeps are not written. */
#define SHORTEST_NS 1000000ULL
/* Threads going to sleep of which one CPU reads the stack in a window of call_budget.h. */
#define SLEEPS 10
/* After a short sleep a thread's next ones are passed over, twice as many as the last time, up to this many. */
#define PASSED_OVER 15

enum kind {
	KIND_RUNNING,
	KIND_SLEPT,
};

SHARED_ENUM(kind);

struct stack_record {
	struct head head;     /* ts: now, or when it fell asleep; tid: the thread */
	__u64 slept;          /* ns */
	__u32 tgid;
	__u32 pythons;        /* how many of the functions of Python there are */
	__s32 kernel_bytes;   /* of the stack that follows; negative if it could not be walked */
	__s32 user_bytes;
	char comm[TASK_COMM_LEN];
	__u64 kernel[KERNEL_DEPTH];
	__u64 user[USER_DEPTH];
	struct python_frame python[PYTHON_DEPTH];
};

SHARED(stack_record);

/* Where a thread of a target went to sleep. */
struct sleep {
	__u64 from;       /* 0 while it is awake, or if that was not read */
	__u32 to_pass;    /* sleeps that will be passed over */
	__u32 passed;     /* how many were at a time */
	__u32 pythons;
	__s32 user_bytes;
	__u64 user[USER_DEPTH];
	struct python_frame python[PYTHON_DEPTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sleep);
} sleeps SEC(".maps");

SEC("perf_event")
int sample(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct stack_record *r;

	if (!(__u32)id)
		return 0; /* idle */
	r = reserve(KIND_RUNNING, sizeof(*r), bpf_ktime_get_ns(), (__u32)id);
	if (!r)
		return 0;
	r->slept = 0;
	r->tgid = id >> 32;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	r->kernel_bytes = bpf_get_stack(ctx, r->kernel, sizeof(r->kernel), 0);
	r->user_bytes = bpf_get_stack(ctx, r->user, sizeof(r->user), BPF_F_USER_STACK);
	r->pythons = python_stack(r->python);
	submit(r);
	return 0;
}

/* The running thread goes to sleep. */
static __always_inline void falls_asleep(void *ctx, struct task_struct *prev, __u64 now)
{
	struct task *t = bpf_task_storage_get(&tasks, prev, 0, 0);
	struct sleep *s;

	if (!t || t->until != FOREVER || prev->flags & PF_KTHREAD)
		return;
	s = bpf_task_storage_get(&sleeps, prev, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s)
		return;
	s->from = 0;
	if (s->to_pass) {
		s->to_pass--;
		return;
	}
	if (!within_budget(now, SLEEPS))
		return;
	s->user_bytes = bpf_get_stack(ctx, s->user, sizeof(s->user), BPF_F_USER_STACK);
	s->pythons = python_stack(s->python);
	s->from = now;
}

static __always_inline void wakes_up(struct task_struct *next, __u64 now)
{
	struct sleep *s = bpf_task_storage_get(&sleeps, next, 0, 0);
	struct stack_record *r;

	if (!s || !s->from)
		return;
	if (now - s->from < SHORTEST_NS) {
		s->passed = s->passed * 2 + 1 < PASSED_OVER ? s->passed * 2 + 1 : PASSED_OVER;
		s->to_pass = s->passed;
		s->from = 0;
		return;
	}
	s->passed = 0;
	r = reserve(KIND_SLEPT, sizeof(*r), s->from, next->pid);
	if (r) {
		r->slept = now - s->from;
		r->tgid = next->tgid;
		r->pythons = s->pythons;
		r->kernel_bytes = 0;
		r->user_bytes = s->user_bytes;
		bpf_probe_read_kernel(r->comm, sizeof(r->comm), next->comm);
		bpf_probe_read_kernel(r->user, sizeof(r->user), s->user);
		bpf_probe_read_kernel(r->python, sizeof(r->python), s->python);
		submit(r);
	}
	s->from = 0;
}

/* Whether a task that is switched out sleeps. A waker may change that now, and then it does not. */
static __always_inline bool is_asleep(struct task_struct *prev)
{
	struct task_struct___state_long *old = (void *)prev;
	__u64 state;

	state = bpf_core_field_exists(old->state) ? (__u64)BPF_CORE_READ(old, state) : prev->__state;
	return state & 0x3; /* TASK_INTERRUPTIBLE, TASK_UNINTERRUPTIBLE */
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sleeps_and_wakes, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 now = bpf_ktime_get_ns();

	if (!preempt && prev->pid && is_asleep(prev))
		falls_asleep(ctx, prev, now);
	if (next->pid)
		wakes_up(next, now);
	return 0;
}
