// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Thread states: what ran, what waited for a CPU, which thread woke which.
 *
 * Every task has its state in task storage. A thread of interest writes one record when it is
 * switched in (its wait) and one when it is switched out (its slice). All other threads only leave a
 * slice in the ledger of their CPU, which is read back when a thread of interest has waited there.
 * What each process used of the CPUs is summed, and with it the page faults of threads of interest.
 */
#define PENDINGS 1
#include "gpuwhy.h"
#include "process_sums.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Why a thread is off its CPU. */
enum off_cpu {
	OFF_CPU_UNKNOWN,         /* it was off before the probe started */
	OFF_CPU_PREEMPTED,
	OFF_CPU_THROTTLED,
	OFF_CPU_SLEEP,
	OFF_CPU_DISK,
	OFF_CPU_UNINTERRUPTIBLE,
	OFF_CPU_STOPPED,
	OFF_CPU_NEW,
	OFF_CPU_DEAD,
};

enum kind {
	KIND_WAIT,
	KIND_RUN,
	KIND_MOVED,
	KIND_OCCUPANT,
	KIND_NAME,
	KIND_EXIT,
	KIND_SIGNAL,
	KIND_STOLEN,
};

/* What is summed for each process. */
enum summed {
	SUMMED_CPU_NS,
	SUMMED_FAULTS, /* page faults of threads of interest */
};

/*
 * A thread's time on a CPU is added to the sums of its process when it is as much as this, or as much as
 * the second number and the thread ends: the map is looked up a few hundred times a second, and not at
 * every switch.
 */
#define USED_NS 2000000
#define USED_AT_END_NS 200000

SHARED_ENUM(summed);
SHARED_ENUM(off_cpu);
SHARED_ENUM(kind);
SHARED_ENUM(context);

struct wait_record {
	struct head head;    /* ts: when it was switched in */
	struct wait wait;
};

struct run_record {
	struct head head;    /* ts: when it was switched out */
	__u64 from;
	__u64 hardirq_ns;    /* of the slice, in interrupt handlers */
	__u64 softirq_ns;    /* of the slice, in softirqs */
	__u32 tgid;
	__s32 syscall;       /* that it goes to sleep in */
	__u8 vec;            /* the softirq vector that took most */
	__u8 off_cpu;        /* enum off_cpu: why it is off its CPU from now on */
	__u16 pad;
	__s32 vcpu;          /* descriptor of the virtual CPU of KVM that it runs, -1 for none */
	__u64 yielded_ns;    /* of the time since `from`, in yields that were joined into one run */
};

struct moved_record {
	struct head head;    /* ts: when; cpu: where the migrating code ran */
	__u32 tgid;
	__u16 from_cpu;
	__u16 to_cpu;
};

struct occupant_record {
	struct head head;    /* ts: end of the slice; tid: the thread that ran */
	__u64 from;
	__u32 tgid;
	__u16 cpu;           /* where it ran; head.cpu is where the ledger was read */
	__u16 pad;
	char comm[TASK_COMM_LEN];
};

struct name_record {
	struct head head;
	__u32 tgid;
	__u32 target; /* 1 if it is recorded as a target or a descendant of one, and not for a while */
	__u64 start;         /* ns since boot */
	__u64 leader_start;
	char comm[TASK_COMM_LEN];
	char leader_comm[TASK_COMM_LEN];
};

struct exit_record {
	struct head head;
	__u32 tgid;
	__u32 pad;
};

struct signal_record {
	struct head head;    /* tid: the thread it was sent to */
	__u32 tgid;
	__u32 signal;
	__u32 sender;        /* tgid */
	__u32 sender_tid;
	char comm[TASK_COMM_LEN];
};

struct stolen_record {
	struct head head;    /* ts: end of the slice; tid: what ran, 0 for the idle task */
	__u64 from;
	__u64 ns;            /* that the hypervisor took of it */
};

SHARED(wait_record);
SHARED(run_record);
SHARED(moved_record);
SHARED(occupant_record);
SHARED(name_record);
SHARED(exit_record);
SHARED(signal_record);
SHARED(stolen_record);

/* Set before load. */
struct constants {
	__u64 waker_ns;        /* how long a waker stays of interest after it woke a thread of interest */
	__u32 contexts_known;  /* the interrupt probe runs */
	__u32 has_prev_state;  /* sched_switch has a fourth argument (5.18) */
	__u32 idle_ns;         /* shorter overlaps with the idle task are not written */
	__u32 interrupt_ns;    /* less time in interrupts has no row of its own */
};

const volatile struct constants constants = {};

/* What ran on a CPU: its last slices. */
#define LEDGER 64

struct slice {
	__u64 from;
	__u64 to;
	__u32 tid;
	__u32 tgid;
	char comm[TASK_COMM_LEN];
};

struct ledger {
	__u64 since;    /* when the present slice began */
	__u32 next;     /* number of the slice to come */
	__u32 written;  /* slices before this number were written, or are not needed */
	__u32 write_present; /* write the present slice when it ends */
	__u32 idle;     /* the last slice was the idle task's */
	__u32 waiting;  /* threads of interest that this CPU was taken from and that have not run since */
	__u32 yielding; /* those that gave it away themselves */
	__u64 needed;   /* slices since then are written whoever asks, since one of these waits; 0 if none does */
	__u64 yield_needed; /* the same for those that gave it away */
	struct slice slices[LEDGER];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by user space: one for each possible CPU */
	__type(key, __u32);
	__type(value, struct ledger);
} ledgers SEC(".maps");

static __always_inline struct task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/*
 * The context in which the CPU is right now, from what the interrupt probe saw begin and not end. (The
 * kernel's own __preempt_count would be exact, but cannot be named on kernels without KALLSYMS_ALL.)
 */
static __always_inline __u8 context_of(struct cpu *cpu)
{
	if (!constants.contexts_known)
		return CONTEXT_UNKNOWN;
	if (cpu->hardirq_depth)
		return CONTEXT_HARDIRQ;
	if (cpu->softirq_vec)
		return CONTEXT_SOFTIRQ;
	return CONTEXT_TASK;
}

static __always_inline void record_name(struct task_struct *p, __u64 now, const char *comm, bool target)
{
	struct name_record *r = reserve(KIND_NAME, sizeof(*r), now, p->pid);

	if (!r)
		return;
	r->tgid = p->tgid;
	r->target = target;
	r->start = p->start_boottime;
	r->leader_start = p->group_leader->start_boottime;
	if (!comm || bpf_probe_read_kernel_str(r->comm, sizeof(r->comm), comm) < 0)
		bpf_probe_read_kernel(r->comm, sizeof(r->comm), p->comm);
	bpf_probe_read_kernel(r->leader_comm, sizeof(r->leader_comm), p->group_leader->comm);
	submit(r);
}

/* Whether this task is recorded exactly. */
static __always_inline bool is_of_interest(struct task *t, struct task_struct *p, __u64 now)
{
	if (became_target(t, p))
		record_name(p, now, NULL, true);
	return t->until > now;
}

/* Since 6.18 each task is throttled when it returns to user space, and marked. */
#define THROTTLED_BY_TASK bpf_core_field_exists(((struct task_struct___throttled *)0)->throttled)

/* How long the queue has been out of quota up to now, on its CPU. */
static __always_inline __u64 throttled_time(struct cfs_rq *queue)
{
	struct cfs_rq___self *q = (void *)queue;
	__u64 total, since, clock;

	if (!q || !bpf_core_field_exists(q->throttled_clock_self_time))
		return 0;
	total = q->throttled_clock_self_time;
	since = q->throttled_clock_self;
	if (since) {
		clock = q->rq->clock;
		if (clock > since)
			total += clock - since;
	}
	return total;
}

/* The same for a pointer whose type the verifier does not know. */
static __always_inline __u64 throttled_time_untyped(struct cfs_rq *queue)
{
	struct cfs_rq___self *q = (void *)queue;
	__u64 total, since, clock;

	if (!q || !bpf_core_field_exists(q->throttled_clock_self_time))
		return 0;
	total = BPF_CORE_READ(q, throttled_clock_self_time);
	since = BPF_CORE_READ(q, throttled_clock_self);
	clock = since ? BPF_CORE_READ(q, rq, clock) : 0;
	return clock > since ? total + clock - since : total;
}

/* Whether a task that is switched out while ready to run is out of quota. */
static __always_inline bool throttled(struct task_struct *p)
{
	if (THROTTLED_BY_TASK)
		return ((struct task_struct___throttled *)p)->throttled;
	return p->se.cfs_rq->throttle_count > 0;
}

static __always_inline __u64 state_of(unsigned long long *ctx, struct task_struct *prev)
{
	struct task_struct___state_long *old = (void *)prev;

	/* Only the argument is safe from a waker that changes the state at the same time. */
	if (constants.has_prev_state)
		return ctx[3] & 0xffffffff;
	if (bpf_core_field_exists(old->state))
		return BPF_CORE_READ(old, state);
	return prev->__state;
}

static __always_inline __u8 off_cpu_of(bool preempt, __u64 state, struct task_struct *prev)
{
	if (preempt || state == 0)
		return throttled(prev) ? OFF_CPU_THROTTLED : OFF_CPU_PREEMPTED;
	if (state & (0x10 | 0x20 | 0x80)) /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
		return OFF_CPU_DEAD;
	if (state & (0x4 | 0x8 | 0x8000)) /* __TASK_STOPPED, __TASK_TRACED, TASK_FROZEN */
		return OFF_CPU_STOPPED;
	if (state & 0x1) /* TASK_INTERRUPTIBLE */
		return OFF_CPU_SLEEP;
	if (state & 0x400) /* TASK_NOLOAD: a kernel thread without work */
		return OFF_CPU_SLEEP;
	if (state & 0x2) /* TASK_UNINTERRUPTIBLE */
		return BPF_CORE_READ_BITFIELD_PROBED(prev, in_iowait) ? OFF_CPU_DISK : OFF_CPU_UNINTERRUPTIBLE;
	return OFF_CPU_SLEEP;
}

/* The system call that the running task is in, -1 for none. */
static __always_inline __s32 syscall_of(struct task_struct *p)
{
	struct pt_regs___x86 *x86;
	struct pt_regs___arm64 *arm64;

	if (p->flags & PF_KTHREAD)
		return -1;
	x86 = (void *)bpf_task_pt_regs(p);
	if (bpf_core_field_exists(x86->orig_ax))
		return x86->orig_ax;
	arm64 = (void *)x86;
	if (bpf_core_field_exists(arm64->syscallno))
		return arm64->syscallno;
	return -1;
}

/* futex on x86-64 and arm64, and what stands for one that waits for Python's interpreter lock (WAIT_FOR_GIL). */
#define X86_FUTEX 202
#define ARM64_FUTEX 98
#define WAIT_FOR_GIL (1 << 20 | X86_FUTEX)

/* The same, but for waits for the interpreter lock of a process that runs Python. */
static __always_inline __s32 wait_of(struct task_struct *p)
{
	__s32 syscall = syscall_of(p);
	struct pt_regs___arm64 *arm64;
	struct pt_regs___x86 *x86;
	struct python *python;
	__u64 address = 0;
	__u32 tgid = p->tgid;

	if (syscall != X86_FUTEX && syscall != ARM64_FUTEX)
		return syscall;
	x86 = (void *)bpf_task_pt_regs(p);
	arm64 = (void *)x86;
	if (bpf_core_field_exists(x86->orig_ax)) {
		if (syscall == X86_FUTEX)
			address = x86->di;
	} else if (bpf_core_field_exists(arm64->syscallno) && syscall == ARM64_FUTEX) {
		address = arm64->regs[0];
	}
	if (!address)
		return syscall;
	python = bpf_map_lookup_elem(&pythons, &tgid);
	if (python && address >= python->from && address < python->to)
		return WAIT_FOR_GIL;
	return syscall;
}

/* ioctl on x86-64 and arm64, and its request KVM_RUN (include/uapi/linux/kvm.h). */
#define X86_IOCTL 16
#define ARM64_IOCTL 29
#define KVM_RUN 0xae80

/* The descriptor of the virtual CPU that the running task runs, -1 for none. */
static __always_inline __s32 vcpu_of(struct task_struct *p)
{
	struct pt_regs___x86 *x86;
	struct pt_regs___arm64 *arm64;

	if (p->flags & PF_KTHREAD)
		return -1;
	x86 = (void *)bpf_task_pt_regs(p);
	if (bpf_core_field_exists(x86->orig_ax))
		return x86->orig_ax == X86_IOCTL && (__u32)x86->si == KVM_RUN ? (__s32)x86->di : -1;
	arm64 = (void *)x86;
	if (bpf_core_field_exists(arm64->syscallno))
		return arm64->syscallno == ARM64_IOCTL && (__u32)arm64->regs[1] == KVM_RUN ?
			       (__s32)arm64->regs[0] : -1;
	return -1;
}

/* The CPU whose queue a task is in. */
static __always_inline __u32 cpu_of(struct task_struct *p)
{
	struct task_struct___cpu *old = (void *)p;

	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return BPF_CORE_READ(old, cpu);
}

/*
 * Whether this CPU may write one record more. A thread of interest that switches a hundred thousand
 * times a second must not be slowed down by recording it: records that are left out are counted.
 */
static __always_inline bool within_budget(struct cpu *cpu, __u64 now)
{
	__u64 credit = cpu->credit + (now - cpu->credited);
	struct knobs *knobs = knobs_now();

	if (!knobs)
		return false;
	cpu->credited = now;
	if (credit > 1000000000)
		credit = 1000000000;
	if (credit < knobs->record_ns) {
		cpu->credit = credit;
		__sync_fetch_and_add(&cpu->dropped[PROBE], 1);
		return false;
	}
	cpu->credit = credit - knobs->record_ns;
	return true;
}

/* When the probe last resumed after it had been paused. */
static __always_inline __u64 resumed(void)
{
	struct knobs *knobs = knobs_now();

	return knobs ? knobs->resumed : 0;
}

static __always_inline void record_slice(struct slice *s, __u32 cpu)
{
	struct occupant_record *r = reserve(KIND_OCCUPANT, sizeof(*r), s->to, s->tid);

	if (!r)
		return;
	r->from = s->from;
	r->tgid = s->tgid;
	r->cpu = cpu;
	r->pad = 0;
	__builtin_memcpy(r->comm, s->comm, sizeof(r->comm));
	submit(r);
}

/* A walk through a ledger. */
struct walk {
	struct ledger *ledger;
	__u64 from;
	__u32 cpu;
	__u32 at;    /* number of the slice that the walk has come to */
	__u32 end;   /* number of the first slice behind the walk */
	__u32 lost;
};

/* Goes one slice back; 1 at the first one that is to be written. */
static long step_back(__u32 i, struct walk *w)
{
	struct ledger *l = w->ledger;

	if (w->at == l->written || l->slices[(w->at - 1) & (LEDGER - 1)].to <= w->from)
		return 1;
	if (w->end - w->at >= LEDGER) {
		/* The wait is longer than the ledger: what ran first in it is lost. */
		w->lost = 1;
		return 1;
	}
	w->at--;
	return 0;
}

/* Writes one slice and goes on to the next one; 1 at the end. */
static long write_next(__u32 i, struct walk *w)
{
	struct slice *s = &w->ledger->slices[w->at & (LEDGER - 1)];

	if (w->at == w->end)
		return 1;
	w->at++;
	/* A short run of the idle task belongs to a wakeup: it is no occupant. */
	if (s->tid || s->to - (s->from > w->from ? s->from : w->from) >= constants.idle_ns)
		record_slice(s, w->cpu);
	return 0;
}

/* Kernels before 5.17 have no bpf_loop, and unrolled loops take the verifier long. */
#define FEW 8

/*
 * Writes what ran on `cpu` since `from`, as far as it was not written before. The caller holds the
 * CPU's run queue lock, as all scheduler tracepoints do, so that the ledger does not change.
 */
__noinline int record_ledger(__u32 cpu, __u64 from)
{
	struct walk w = { .from = from, .cpu = cpu };
	int i;

	w.ledger = bpf_map_lookup_elem(&ledgers, &cpu);
	if (!w.ledger)
		return 0;
	/* Another one that waits for longer would not find them any more. */
	if (w.ledger->needed && w.ledger->needed < w.from)
		w.from = w.ledger->needed;
	if (w.ledger->yield_needed && w.ledger->yield_needed < w.from)
		w.from = w.ledger->yield_needed;
	w.at = w.ledger->next;
	w.end = w.at;
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(LEDGER + 1, step_back, &w, 0);
		bpf_loop(LEDGER, write_next, &w, 0);
	} else {
		for (i = 0; i < FEW; i++)
			if (step_back(i, &w))
				break;
		w.lost |= i == FEW;
		for (i = 0; i < FEW; i++)
			if (write_next(i, &w))
				break;
	}
	if (w.lost)
		count_dropped();
	w.ledger->written = w.end;
	w.ledger->needed = w.ledger->waiting ? w.ledger->since : 0;
	w.ledger->yield_needed = w.ledger->yielding ? w.ledger->since : 0;
	return 0;
}

static __always_inline void record_wait(struct task *t, __u64 in, __u32 tid)
{
	struct wait_record *r = reserve(KIND_WAIT, sizeof(*r), in, tid);

	if (!r)
		return;
	r->wait = t->wait;
	submit(r);
}

/* Adds the slice that ends to what the thread's process used of the CPUs, but for what was stolen of it. */
static __always_inline void add_used(struct task_struct *prev, struct task *t, __u64 stolen, __u64 now, __u8 off)
{
	struct sum_key key = { .tgid = prev->tgid };
	char comm[TASK_COMM_LEN];
	struct sum *sum;

	if (t->since > resumed() && now - t->since > stolen)
		t->used += now - t->since - stolen;
	if (t->used < USED_NS && (off != OFF_CPU_DEAD || t->used < USED_AT_END_NS))
		return;
	bpf_probe_read_kernel(comm, sizeof(comm), prev->group_leader->comm);
	sum = sum_of(&key, comm);
	if (sum)
		sum_add(&sum->n[SUMMED_CPU_NS], t->used);
	t->used = 0;
	/* The kernel counts them itself: a probe at each fault would cost every process of the host. */
	if (t->until > now) {
		__u64 faults = prev->min_flt + prev->maj_flt;

		if (sum && t->faults)
			sum_add(&sum->n[SUMMED_FAULTS], faults - t->faults);
		t->faults = faults;
	}
}

/* A thread of interest waits for this CPU from now on, or runs again. */
static __always_inline void waits_on(struct task *t, struct ledger *l, __u32 id, __u64 now)
{
	t->waits_on = id + 1;
	if (t->yields) {
		__sync_fetch_and_add(&l->yielding, 1);
		if (!l->yield_needed)
			l->yield_needed = now;
		return;
	}
	__sync_fetch_and_add(&l->waiting, 1);
	if (!l->needed)
		l->needed = now;
}

static __always_inline void waits_no_more(struct task *t)
{
	__u32 id = t->waits_on - 1;
	struct ledger *l = bpf_map_lookup_elem(&ledgers, &id);

	t->waits_on = 0;
	if (!l)
		return;
	if (!t->yields) {
		__sync_fetch_and_add(&l->waiting, -1);
		return;
	}
	__sync_fetch_and_add(&l->yielding, -1);
	/* Those that yield take turns: the ones that still wait began to later than this one did. */
	l->yield_needed = l->yielding ? t->wait.from : 0;
}

/* sched_yield on x86-64 and arm64. */
#define X86_SCHED_YIELD 24
#define ARM64_SCHED_YIELD 124

/*
 * Threads that wait for each other in a loop of sched_yield switch a hundred thousand times a second. Their slices
 * and yields are joined into one run as long as each yield is shorter than the first number and the run than the
 * second one, and nothing else is to be told of a slice: two records for it instead of thousands.
 */
#define YIELD_NS 50000
#define JOINED_NS 2000000

/* Whether the slice of `prev` that began at `from` ended by its own call, so that the run may go on after it. */
static __always_inline bool yields(struct task_struct *prev, struct task *t, struct cpu *cpu, __u64 from, __u64 now,
				   bool preempt, __u8 off)
{
	struct pt_regs___x86 *x86 = NULL;
	__s32 syscall;

	if (preempt || off != OFF_CPU_PREEMPTED || !from)
		return false;
	if (cpu->slice_hardirq_ns + cpu->slice_softirq_ns >= constants.interrupt_ns)
		return false;
	if (now - (t->joined ? t->joined : from) >= JOINED_NS)
		return false;
	syscall = syscall_of(prev);
	return syscall == (bpf_core_field_exists(x86->orig_ax) ? X86_SCHED_YIELD : ARM64_SCHED_YIELD);
}

static __always_inline struct run_record *reserve_run(struct task *t, struct task_struct *p, __u64 from, __u64 to)
{
	struct run_record *r = reserve(KIND_RUN, sizeof(*r), to, p->pid);

	if (!r)
		return NULL;
	r->from = t->joined ? t->joined : from;
	r->yielded_ns = t->yielded_ns;
	r->tgid = p->tgid;
	r->pad = 0;
	return r;
}

/* The run that was to go on after a yield did not: what was not recorded of it. */
static __always_inline void record_joined(struct task *t, struct task_struct *p)
{
	struct run_record *r = reserve_run(t, p, t->joined, t->wait.from);

	if (!r)
		return;
	r->hardirq_ns = 0;
	r->softirq_ns = 0;
	r->syscall = -1;
	r->vec = 0;
	r->off_cpu = OFF_CPU_PREEMPTED;
	r->vcpu = -1;
	submit(r);
}

static __always_inline void no_longer_joined(struct task *t)
{
	t->joined = 0;
	t->yielded_ns = 0;
	t->yields = 0;
}

static __always_inline void switched_out(unsigned long long *ctx, struct task_struct *prev,
					 struct task *t, struct cpu *cpu, struct ledger *l, __u32 id,
					 __u64 now, __u8 off)
{
	struct run_record *r;
	bool exact = is_of_interest(t, prev, now);
	__u64 from = t->since > resumed() ? t->since : 0;
	__u32 i, vec = 0;

	t->since = now;
	t->wait.from = now;
	t->wait.woken = 0;
	t->wait.throttled = 0;
	t->wait.tgid = prev->tgid;
	t->wait.off_cpu = off;
	t->wait.syscall = -1;
	if (!exact) {
		no_longer_joined(t);
		return;
	}
	t->yields = yields(prev, t, cpu, from, now, ctx[0], off);
	if (off == OFF_CPU_PREEMPTED)
		waits_on(t, l, id, now);
	if (!THROTTLED_BY_TASK || off == OFF_CPU_THROTTLED)
		t->throttled0 = throttled_time(prev->se.cfs_rq);
	if (off != OFF_CPU_PREEMPTED && off != OFF_CPU_DEAD)
		t->wait.syscall = wait_of(prev);
	if (t->yields) {
		if (!t->joined)
			t->joined = from;
		return;
	}
	r = from && within_budget(cpu, now) ? reserve_run(t, prev, from, now) : NULL;
	no_longer_joined(t);
	if (!r)
		return;
	r->hardirq_ns = cpu->slice_hardirq_ns;
	r->softirq_ns = cpu->slice_softirq_ns;
	if (r->softirq_ns) {
		__u64 most = 0;

		for (i = 0; i < SOFTIRQS; i++) {
			if (cpu->slice_vec_ns[i] > most) {
				most = cpu->slice_vec_ns[i];
				vec = i;
			}
		}
	}
	r->syscall = t->wait.syscall;
	r->vec = vec;
	r->off_cpu = off;
	r->vcpu = vcpu_of(prev);
	submit(r);
}

static __always_inline void switched_in(struct task_struct *next, struct task *t, struct cpu *cpu,
					struct ledger *l, __u64 now)
{
	struct wait *w = &t->wait;
	bool joins = t->yields && t->waits_on == bpf_get_smp_processor_id() + 1 && now - w->from < YIELD_NS;
	__u64 ready;

	if (t->waits_on)
		waits_no_more(t);
	if (w->from <= resumed()) {
		w->from = 0;
		w->off_cpu = OFF_CPU_UNKNOWN;
		t->since = 0;
	}
	/*
	 * A thread that was asleep and runs now was woken. When no wakeup was seen since it was switched
	 * out, it was the one just before: the waker found it about to sleep.
	 */
	if (w->off_cpu == OFF_CPU_PREEMPTED || w->off_cpu == OFF_CPU_THROTTLED)
		w->woken = 0;
	else
		w->woken = t->wake_ts > w->from ? t->wake_ts : (t->wake_ts ? w->from : 0);
	ready = w->woken ? w->woken : w->from;
	if (t->since && ready && now > ready)
		cpu->runq_wait_ns += now - ready;
	t->wake_ts = 0;
	t->since = now;
	if (!is_of_interest(t, next, now)) {
		no_longer_joined(t);
		return;
	}
	if (!w->from) {
		no_longer_joined(t);
	} else if (joins) {
		t->yielded_ns += now - w->from;
		t->yields = 0;
		return;
	}
	if (t->yields) {
		if (within_budget(cpu, now))
			record_joined(t, next);
		no_longer_joined(t);
	}
	/* Not known yet of a thread that has not been switched out since it was first seen. */
	w->tgid = next->tgid;
	if (w->from && (!THROTTLED_BY_TASK || w->off_cpu == OFF_CPU_THROTTLED)) {
		__u64 total = throttled_time(next->se.cfs_rq);

		if (total > t->throttled0)
			w->throttled += total - t->throttled0;
		/* Kernels before 6.6 do not count how long: all of the wait, then. */
		if (!total && w->off_cpu == OFF_CPU_THROTTLED)
			w->throttled = now - ready;
		if (w->throttled > now - ready)
			w->throttled = now - ready;
	}
	if (!within_budget(cpu, now))
		return;
	record_wait(t, now, next->pid);
	/* Most of the time it was the idle task that had the CPU, and not for long. */
	if (ready && !(l->idle && now - ready < constants.idle_ns))
		record_ledger(bpf_get_smp_processor_id(), ready);
}

/* Less than this is added to what the next slice lost. */
#define STOLEN_NS 50000

/*
 * What the hypervisor took of the slice that ends, in ns. The scheduler has just asked for it, so as not to
 * charge it to the thread.
 */
static __always_inline __u64 stolen_of(struct task_struct *prev, struct cpu *cpu, __u64 since, __u64 now)
{
	struct rq___steal *rq = (void *)prev->se.cfs_rq->rq;
	struct stolen_record *r;
	__u64 total, of_slice, added;

	if (!bpf_core_field_exists(rq->prev_steal_time_rq))
		return 0;
	total = rq->prev_steal_time_rq;
	of_slice = total - cpu->stolen_ns;
	cpu->stolen_ns = total;
	if (since <= resumed() || !cpu->stolen_at) {
		cpu->stolen_recorded_ns = total;
		cpu->stolen_at = now;
		return 0;
	}
	cpu->stolen_at = now;
	added = total - cpu->stolen_recorded_ns;
	if (added < STOLEN_NS)
		return of_slice;
	cpu->stolen_recorded_ns = total;
	r = reserve(KIND_STOLEN, sizeof(*r), now, prev->pid);
	if (r) {
		/* An idle CPU misses nothing until something is to run there. */
		r->from = !prev->pid && now - since > added ? now - added : since;
		r->ns = added;
		submit(r);
	}
	return of_slice;
}

SEC("tp_btf/sched_switch")
int sched_switch(unsigned long long *ctx)
{
	bool preempt = ctx[0];
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	__u64 now = bpf_ktime_get_ns();
	__u32 id = bpf_get_smp_processor_id();
	struct ledger *l = bpf_map_lookup_elem(&ledgers, &id);
	struct cpu *cpu = this_cpu();
	struct task *t;
	__u64 stolen;

	if (!cpu || !l)
		return 0;
	cpu->switches++;

	if (l->since > resumed()) {
		struct slice *s = &l->slices[l->next & (LEDGER - 1)];

		s->from = l->since;
		s->to = now;
		s->tid = prev->pid;
		s->tgid = prev->tgid;
		if (prev->pid)
			bpf_probe_read_kernel(s->comm, sizeof(s->comm), prev->comm);
		l->idle = !prev->pid;
		l->next++;
		if (l->write_present) {
			record_slice(s, id);
			l->write_present = 0;
			l->written = l->next;
		}
	}
	stolen = stolen_of(prev, cpu, l->since, now);
	l->since = now;

	if (prev->pid) {
		t = task_of(prev);
		if (t) {
			__u8 off = off_cpu_of(preempt, state_of(ctx, prev), prev);

			add_used(prev, t, stolen, now, off);
			switched_out(ctx, prev, t, cpu, l, id, now, off);
		}
	}
	cpu->slice_hardirq_ns = 0;
	cpu->slice_softirq_ns = 0;
	if (next->pid) {
		t = task_of(next);
		if (t)
			switched_in(next, t, cpu, l, now);
	}
	return 0;
}

/* The softirq in which packets are received (include/linux/interrupt.h), and how the probe writes vectors. */
#define NET_RX 3

/*
 * Whether the running task is in a call that sends bytes. To somebody on the same host they are delivered at once, in a
 * softirq within that call: then it is most likely the task itself that wakes the receiver.
 */
static __always_inline bool sends(struct task_struct *p)
{
	struct pt_regs___x86 *x86 = NULL;
	__s32 call = syscall_of(p);

	if (bpf_core_field_exists(x86->orig_ax))
		/* write, writev, sendfile, sendto, sendmsg, sendmmsg */
		return call == 1 || call == 20 || call == 40 || call == 44 || call == 46 || call == 307;
	return call == 64 || call == 66 || call == 71 || call == 206 || call == 211 || call == 269;
}

/* The running thread makes `p` ready to run. */
static __always_inline void note_wakeup(struct task_struct *p, struct task *t, __u64 now)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct cpu *cpu = this_cpu();
	struct knobs *knobs;
	struct task *w;

	if (!cpu)
		return;
	t->wake_ts = now;
	t->wait.context = context_of(cpu);
	t->wait.wake_cpu = bpf_get_smp_processor_id();
	t->wait.waker = waker->pid;
	t->wait.waker_tgid = waker->tgid;
	t->wait.waker_comm[0] = 0;
	if (!is_of_interest(t, p, now))
		return;
	if (!THROTTLED_BY_TASK && t->wait.off_cpu != OFF_CPU_PREEMPTED && t->wait.off_cpu != OFF_CPU_THROTTLED)
		t->throttled0 = throttled_time(p->se.cfs_rq);
	if (!waker->pid)
		return;
	if (t->wait.context == CONTEXT_TASK)
		bpf_probe_read_kernel(t->wait.waker_comm, sizeof(t->wait.waker_comm), waker->comm);
	else if (t->wait.context != CONTEXT_SOFTIRQ || cpu->softirq_vec != NET_RX + 1 || !sends(waker))
		return;
	knobs = knobs_now();
	if (!t->hops || !knobs || knobs->without_wakers)
		return;

	/* The wakeup was the waker's own doing, so that its own time is of interest, for a while. */
	w = task_of(waker);
	if (!w)
		return;
	if (!is_of_interest(w, waker, now)) {
		w->hops = t->hops - 1;
		w->until = now + constants.waker_ns;
		record_name(waker, now, NULL, false);
		/* What it did before the wakeup is what the woken thread waited for. */
		w->wait.tgid = waker->tgid;
		if (w->since)
			record_wait(w, w->since, waker->pid);
		return;
	}
	if (w->hops < t->hops - 1)
		w->hops = t->hops - 1;
	if (w->until != FOREVER)
		w->until = now + constants.waker_ns;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *p)
{
	struct task *t = task_of(p);

	if (t)
		note_wakeup(p, t, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *p)
{
	struct task *t = task_of(p);
	__u64 now = bpf_ktime_get_ns();

	if (!t)
		return 0;
	t->since = now;
	t->wait.from = now;
	t->wait.tgid = p->tgid;
	t->wait.off_cpu = OFF_CPU_NEW;
	t->wait.syscall = -1;
	t->wait.throttled = 0;
	note_wakeup(p, t, now);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task *t = bpf_task_storage_get(&tasks, parent, 0, 0), *c;
	__u64 now = bpf_ktime_get_ns();

	if (!t || !is_of_interest(t, parent, now) || t->until != FOREVER)
		return 0;
	c = task_of(child);
	if (!c)
		return 0;
	c->until = FOREVER;
	c->hops = t->hops;
	c->generation = t->generation;
	if (child->pid == child->tgid) {
		__u32 tgid = parent->tgid;
		struct python *python = bpf_map_lookup_elem(&pythons, &tgid);

		tgid = child->tgid;
		if (python)
			bpf_map_update_elem(&pythons, &tgid, python, BPF_ANY);
	}
	record_name(child, now, NULL, true);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *p)
{
	struct task *t = bpf_task_storage_get(&tasks, p, 0, 0);
	__u64 now = bpf_ktime_get_ns();

	if (t && is_of_interest(t, p, now)) {
		__u32 tgid = p->tgid;

		bpf_map_delete_elem(&pythons, &tgid);
		record_name(p, now, NULL, t->until == FOREVER);
	}
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *p, const char *comm)
{
	/* Of any thread: a culprit that names itself late is to be shown by that name. Renames are rare. */
	record_name(p, bpf_ktime_get_ns(), comm, false);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *p)
{
	struct task *t = bpf_task_storage_get(&tasks, p, 0, 0);
	__u64 now = bpf_ktime_get_ns();
	struct exit_record *r;

	if (p->pid == p->tgid) {
		__u32 tgid = p->tgid;

		bpf_map_delete_elem(&pythons, &tgid);
	}
	/* A process of no interest may be an occupant or a waker, and its pid is used again. */
	if (p->pid != p->tgid && !(t && t->until > now))
		return 0;
	r = reserve(KIND_EXIT, sizeof(*r), now, p->pid);
	if (!r)
		return 0;
	r->tgid = p->tgid;
	r->pad = 0;
	submit(r);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(sched_migrate_task, struct task_struct *p, int dest)
{
	struct task *t = bpf_task_storage_get(&tasks, p, 0, 0);
	__u64 now, ready, total;
	struct moved_record *r;
	struct cfs_rq **queues, *queue = NULL;
	struct ledger *l;
	__u32 from_cpu;

	if (!t || !t->until || !t->wait.from)
		return 0;
	now = bpf_ktime_get_ns();
	/* Only a thread that is ready to run waits for a CPU. */
	ready = t->wait.off_cpu == OFF_CPU_PREEMPTED || t->wait.off_cpu == OFF_CPU_THROTTLED ? t->wait.from
										  : t->wake_ts;
	if (t->until <= now || !ready)
		return 0;
	total = throttled_time(p->se.cfs_rq);
	if (total > t->throttled0)
		t->wait.throttled += total - t->throttled0;
	queues = BPF_CORE_READ(p, sched_task_group, cfs_rq);
	if (queues)
		bpf_probe_read_kernel(&queue, sizeof(queue), &queues[dest]);
	t->throttled0 = throttled_time_untyped(queue);

	/* A waker chooses the CPU of the thread that it wakes before that one waits anywhere. */
	if (!p->on_rq)
		return 0;
	from_cpu = cpu_of(p);
	r = reserve(KIND_MOVED, sizeof(*r), now, p->pid);
	if (r) {
		r->tgid = p->tgid;
		r->from_cpu = from_cpu;
		r->to_cpu = dest;
		submit(r);
	}
	record_ledger(from_cpu, ready);
	l = bpf_map_lookup_elem(&ledgers, &from_cpu);
	if (l)
		l->write_present = 1;
	return 0;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(signal_generate, int signal, void *info, struct task_struct *p)
{
	struct task_struct *sender = bpf_get_current_task_btf();
	struct task *t;
	struct signal_record *r;
	bool stops, wakes;
	__u64 now;

	/*
	 * SIGKILL, SIGTERM, SIGCONT, SIGSTOP, SIGTSTP: what makes a process stop or go on. SIGUSR1, SIGUSR2, SIGURG
	 * of another process: by which those of one program wake each other.
	 */
	stops = signal == 9 || signal == 15 || signal == 18 || signal == 19 || signal == 20;
	wakes = (signal == 10 || signal == 12 || signal == 23) && sender->tgid != p->tgid;
	if (!stops && !wakes)
		return 0;
	t = bpf_task_storage_get(&tasks, p, 0, 0);
	now = bpf_ktime_get_ns();
	if (!t || t->until <= now)
		return 0;
	r = reserve(KIND_SIGNAL, sizeof(*r), now, p->pid);
	if (!r)
		return 0;
	r->tgid = p->tgid;
	r->signal = signal;
	r->sender = sender->tgid;
	r->sender_tid = sender->pid;
	bpf_probe_read_kernel(r->comm, sizeof(r->comm), sender->comm);
	submit(r);
	return 0;
}
