/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What all probes share: the ring of records, what is known of each task, and one page of
 * counters for each CPU that user space reads without a system call.
 *
 * The build defines PROBE, the number of the file that is compiled, and PROBE_SLOTS, one more than
 * the largest such number. The maps are declared in every object; user space creates them once and
 * hands the same descriptor to all of them.
 *
 * Structs and enums that the Rust half declares too (`shared_with_c!`) are compared with it by a
 * test, so that a change on one side only is an error.
 */
#ifndef GPUWHY_H
#define GPUWHY_H

#include "kernel.h"

#define SOFTIRQS 10

/* The beginning of every record. */
struct head {
	__u64 ts;   /* ns, CLOCK_MONOTONIC */
	__u8 kind;  /* which of the probe's records it is */
	__u8 probe; /* PROBE */
	__u16 cpu;
	__u32 tid;  /* the thread that it is about, 0 for none */
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
	__u64 runq_wait_ns;           /* how long all threads together waited for this CPU */
	__u64 switches;
	__u64 dropped[PROBE_SLOTS];   /* records lost because the ring was full, per probe */
	__u64 credit;                 /* ns of records that the scheduler probe may still write */
	__u64 credited;               /* when the credit was last computed */
	__u64 stolen_ns;              /* what the hypervisor took of it up to the last context switch */
	__u64 stolen_recorded_ns;     /* as much of it as was recorded */
	__u64 stolen_at;              /* when the kernel last told that exactly; 0: never */
};

/* In which context the code runs that a tracepoint interrupted. */
enum context {
	CONTEXT_UNKNOWN,
	CONTEXT_TASK,
	CONTEXT_SOFTIRQ,
	CONTEXT_HARDIRQ,
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
	__u8 off_cpu;      /* enum off_cpu: why it waits */
	__u8 context;      /* enum context of the waking code */
	__u16 wake_cpu;
	__u32 pad;
	char waker_comm[TASK_COMM_LEN];
};

/* What is known of one task. */
struct task {
	__u64 until;       /* ns until which it is of interest; FOREVER for targets, 0 for others */
	__u64 since;       /* when it was last switched in or out; 0 if not seen */
	__u64 wake_ts;     /* when it was last woken */
	__u64 throttled0;  /* its queue's throttled time when the wait began */
	__u64 used;        /* ns on a CPU that the sums of its process do not hold yet */
	__u64 faults;      /* its page faults that they hold, and those before it was of interest */
	__u32 hops;        /* how many more wakers away from it are of interest */
	__u32 generation;  /* of the list of targets, when this was last compared with it */
	__u64 joined;      /* begin of the run that goes on after short yields; 0 if it is of one slice */
	__u64 yielded_ns;  /* of that run, ready to run while others had the CPU */
	__u32 waits_on;    /* number of the CPU that was taken from it while it could run, plus 1; 0 if none was */
	__u32 yields;      /* it gave that CPU away itself, and no record tells of the slice before */
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

/* The targets: processes by tgid, and how many wakers away from them are of interest too. */
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

/*
 * The interpreter of a process that runs Python: where it is, and what is where in its structs, in bytes. User space
 * finds out (python/layout.rs); a fork has its parent's.
 */
struct python {
	__u64 from;            /* _PyRuntime, which holds the interpreter lock */
	__u64 to;
	__u32 interpreters;    /* in _PyRuntime: the first interpreter; 0: stacks cannot be read */
	__u32 threads;         /* in it: its first thread */
	__u32 next_thread;     /* in a thread: the next one */
	__u32 thread_id;       /* what pthread_self() says there */
	__u32 frame;           /* its innermost frame, or the struct that holds that */
	__u32 in_between;      /* where in that struct the frame is; PYTHON_NONE if there is no such struct */
	__u32 previous;        /* in a frame: the one that called it */
	__u32 code;            /* its code object */
	__u32 instruction;     /* where in the code it is */
	__u32 owner;           /* whose it is; PYTHON_NONE where frames have no such member */
};

#define PYTHON_NONE (~0U)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tgid */
	__type(value, struct python);
} pythons SEC(".maps");

/* What user space changes while the programs run. */
struct knobs {
	__u32 record_ns;       /* ns that one exact record costs a CPU, which may save up a second's worth */
	__u32 without_wakers;  /* no thread becomes of interest by waking one that is */
	__u32 without_messages;
	__u32 pad;
	__u64 resumed;         /* ns; what the scheduler probe noted before is out of date */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct knobs);
} knobs SEC(".maps");

/* Keeps a type that only local variables have among the object's types, where the test finds it
 * that compares it with its Rust half. The section is not loaded. */
#define SHARED(type) const struct type *shared_##type SEC(".types")
#define SHARED_ENUM(type) const enum type *shared_enum_##type SEC(".types")

SHARED(head);
SHARED(knobs);
SHARED(python);

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

/* Counts an event that is not recorded. */
static __always_inline void count_dropped(void)
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		__sync_fetch_and_add(&cpu->dropped[PROBE], 1);
}

/* Room for a record in the ring; when it is full, counts the loss and returns NULL. */
static __always_inline void *reserve(__u8 kind, __u64 size, __u64 ts, __u32 tid)
{
	struct head *head = bpf_ringbuf_reserve(&events, size, 0);

	if (!head) {
		count_dropped();
		return NULL;
	}
	head->ts = ts;
	head->kind = kind;
	head->probe = PROBE;
	head->cpu = bpf_get_smp_processor_id();
	head->tid = tid;
	return head;
}

/* Of a probe that writes one kind of records only. */
#define ONLY_KIND 0

/* User space drains the ring at every tick by itself, so that no record has to wake it. */
static __always_inline void submit(void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#define FOREVER (~0ULL)

/* Whether the task has become a target since this was last asked. */
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

/* Until when the running thread is recorded exactly; 0 if it never was. */
static __always_inline __u64 of_interest_until(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task = bpf_task_storage_get(&tasks, p, 0, 0);

	if (!task)
		return 0;
	became_target(task, p);
	return task->until;
}

/* Whether the running thread is recorded exactly. */
static __always_inline bool of_interest(__u64 now)
{
	return of_interest_until() > now;
}

/* Whether the running thread itself is what runs, and not an interrupt that borrowed it. */
static __always_inline bool in_task(void)
{
	struct cpu *cpu = this_cpu();

	return !cpu || !(cpu->softirq_vec || cpu->hardirq_depth);
}

#endif
