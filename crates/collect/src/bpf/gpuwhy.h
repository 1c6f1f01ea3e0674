/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What all probes share: the ring of records, what is known of each task, and one page of
 * counters for each CPU that user space reads without a system call.
 *
 * A probe's file defines PROBE (one of enum probe) before it includes this. The maps are declared
 * in every object; user space creates them once and hands the same descriptor to all of them.
 */
#ifndef GPUWHY_H
#define GPUWHY_H

#include "kernel.h"

/* Keep in step with `kernel.rs`. Record kinds of probe P are P << 8 .. (P + 1) << 8. */
enum probe {
	PROBE_RUN_QUEUE = 1,
	PROBE_INTERRUPTS = 2,
	PROBE_STEPS = 3,
	PROBE_BLOCK_IO = 4,
	PROBE_NETWORK = 5,
	PROBE_MEMORY = 6,
	PROBE_STACKS = 7,
	PROBE_NCCL_CALLS = 8,
	PROBES = 9,
};

#define KIND(n) ((PROBE << 8) | (n))

#define SOFTIRQS 10

/* Every record begins with this. */
struct head {
	__u64 ts;   /* ns, CLOCK_MONOTONIC */
	__u16 kind;
	__u16 cpu;
	__u32 tid;  /* whose record it is, 0 if no thread's */
};

/*
 * One CPU. Only code that runs on the CPU writes here. The slice is what ran since the last
 * context switch; the scheduler probe clears it, the interrupt probe adds to it.
 */
struct cpu {
	__u64 hardirq_ns;             /* time in interrupt handlers */
	__u64 softirq_ns[SOFTIRQS];   /* time in each softirq vector, without interrupts inside */
	__u64 hardirq_start;
	__u64 softirq_start;          /* 0 while not inside */
	__u64 softirq_hardirq0;       /* hardirq_ns when the softirq began */
	__u32 hardirq_depth;
	__u32 softirq_vec;            /* vector + 1 while inside, else 0 */
	__u64 slice_hardirq_ns;
	__u64 slice_softirq_ns;
	__u64 slice_vec_ns[SOFTIRQS]; /* meaningful only while slice_softirq_ns is not 0 */
	__u64 runq_wait_ns;           /* all threads together waited so long for this CPU */
	__u64 switches;
	__u64 recorded[PROBES];       /* records written to the ring, per probe */
	__u64 dropped[PROBES];        /* records lost because the ring was full, per probe */
	__u64 credit;                 /* ns of records that the scheduler probe may still write */
	__u64 credited;               /* when that was last reckoned */
	__u64 spare[1];
};

/* In which context code runs that a tracepoint interrupted. Keep in step with `run_queue.rs`. */
enum context {
	CONTEXT_UNKNOWN = 0,
	CONTEXT_TASK = 1,
	CONTEXT_SOFTIRQ = 2,
	CONTEXT_HARDIRQ = 3,
};

/* The wait of a thread off its CPU: as far as known while it lasts, all of it at its end. */
struct wait {
	__u64 from;        /* when it was switched out; 0 if that was not seen */
	__u64 woken;       /* when it was woken; 0 if it was not asleep, or not seen */
	__u64 throttled;   /* ns of the wait that it was out of quota */
	__u32 tgid;
	__u32 waker;       /* tid that ran the waking code, whatever the context */
	__u32 waker_tgid;
	__s32 syscall;     /* that it sleeps in, -1 for none */
	__u8 state;        /* enum off */
	__u8 context;      /* enum context of the waking code */
	__u16 wake_cpu;
	__u32 pad;
	char waker_comm[TASK_COMM_LEN];
};

/* What is known of one task. */
struct task {
	__u64 until;       /* ns until which it is of interest; FOREVER for targets, 0 for nobody */
	__u64 since;       /* when it was last switched in or out; 0 if not seen */
	__u64 wake_ts;     /* when it was last woken */
	__u64 throttled0;  /* its queue's throttled time when the wait began */
	__u32 hops;        /* how many more wakers out from it are of interest */
	__u32 generation;  /* of the list of targets, when this was last compared with it */
	struct wait wait;  /* the present one, or the last one while it runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20); /* set by user space before load */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by user space before load: one for each possible CPU */
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* The targets: processes by tgid, and how many wakers out from them are of interest too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

/* Counts how often the list of targets has changed; tasks compare theirs with it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} generation SEC(".maps");

/* What user space turns while the programs run. Keep in step with `kernel.rs`. */
struct knobs {
	__u32 record_ns;       /* one CPU may write an exact record each so many ns, and save up a second's */
	__u32 without_wakers;  /* nobody becomes of interest for having woken somebody */
	__u32 without_messages;
	__u32 pad;
	__u64 resumed;         /* ns; what the scheduler probe saw before is of another time */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct knobs);
} knobs SEC(".maps");

/* Keeps a type that only local variables have among the object's types, where a test compares it
 * with its other half in Rust. The section is not loaded. */
#define SHARED(type) const struct type *shared_##type SEC(".types")

SHARED(head);
SHARED(knobs);

static __always_inline struct knobs *knobs_now(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&knobs, &zero);
}

static __always_inline struct cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

/* Room for a record in the ring; when it is full, counts the loss and returns NULL. */
static __always_inline void *reserve(__u32 kind, __u64 size, __u64 ts, __u32 tid)
{
	struct cpu *cpu = this_cpu();
	struct head *head = bpf_ringbuf_reserve(&events, size, 0);

	if (!head) {
		if (cpu)
			__sync_fetch_and_add(&cpu->dropped[PROBE], 1);
		return NULL;
	}
	if (cpu)
		__sync_fetch_and_add(&cpu->recorded[PROBE], 1);
	head->ts = ts;
	head->kind = kind;
	head->cpu = bpf_get_smp_processor_id();
	head->tid = tid;
	return head;
}

/* User space looks at the ring every tick by itself, so that no record has to wake it. */
static __always_inline void submit(void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#define FOREVER (~0ULL)

/* Looks whether the task has become a target since we last looked; true if it is one anew. */
static __always_inline bool became_target(struct task *t, struct task_struct *p)
{
	__u32 zero = 0, tgid;
	__u32 *current = bpf_map_lookup_elem(&generation, &zero), *hops;

	if (!current || t->generation == *current)
		return false;
	t->generation = *current;
	if (t->until == FOREVER)
		return false;
	tgid = p->tgid;
	hops = bpf_map_lookup_elem(&targets, &tgid);
	if (!hops)
		return false;
	t->until = FOREVER;
	t->hops = *hops;
	return true;
}

/* Whether the running thread is one that rows are wanted of. */
static __always_inline bool of_interest(__u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task = bpf_task_storage_get(&tasks, p, 0, 0);

	if (!task)
		return false;
	became_target(task, p);
	return task->until > now;
}

#endif
