// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Calls of functions that the user named: entry and return of the outermost call make a step.
 *
 * One link with both ends where the kernel has uprobe sessions (6.13), else two links.
 */
#include <asm/ptrace.h>
#include "gpuwhy.h"
#include "call_budget.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct step_record {
	struct head head; /* ts: when it returned */
	__u64 from;       /* when it was called */
	__u64 woken;      /* when its thread was last woken before that, and had to wait for a CPU; else 0 */
	__u64 ran;        /* when it got one */
	__u32 tgid;
	__u32 step;       /* which function */
};

SHARED(step_record);

/* Set before load. */
struct constants {
	__u32 any_process; /* no targets were named: each process that calls becomes one */
	__u32 hops;
	__u32 calls;       /* steps that one CPU may begin in a window; more are counted, not written */
	__u32 pad;
};

const volatile struct constants constants = {};

struct key {
	__u32 tid;
	__u32 step;
};

/* A call that has not returned. */
struct call {
	__u64 from;   /* 0: not recorded, because there were too many */
	__u64 woken;
	__u64 ran;
	__u64 sp;     /* stack pointer at the outermost entry */
	__u32 depth;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct key);
	__type(value, struct call);
} calls SEC(".maps");

static __always_inline int call_begins(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct key key = { .step = bpf_get_attach_cookie(ctx) };
	__u64 now, sp = PT_REGS_SP(ctx);
	struct call *call, fresh = {};

	if (!t)
		return 0;
	became_target(t, p);
	if (t->until != FOREVER) {
		if (!constants.any_process)
			return 0;
		t->until = FOREVER;
		t->hops = constants.hops;
	}
	key.tid = p->pid;
	call = bpf_map_lookup_elem(&calls, &key);
	if (call && call->depth) {
		/* A nested call has its frame below; any other means that the last one was left by a
		 * jump or an exception and will never return. */
		if (sp < call->sp) {
			call->depth++;
			return 0;
		}
		count_dropped();
	}
	now = bpf_ktime_get_ns();
	fresh.sp = sp;
	fresh.depth = 1;
	if (t->wait.woken && t->since > t->wait.woken) {
		fresh.woken = t->wait.woken;
		fresh.ran = t->since;
	}
	if (within_budget(now, constants.calls))
		fresh.from = now;
	else
		count_dropped();
	bpf_map_update_elem(&calls, &key, &fresh, BPF_ANY);
	return 0;
}

static __always_inline int call_returns(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct key key = { .step = bpf_get_attach_cookie(ctx) };
	struct step_record *r;
	struct call *call;
	__u64 from, woken, ran;

	key.tid = p->pid;
	call = bpf_map_lookup_elem(&calls, &key);
	if (!call || !call->depth || --call->depth)
		return 0;
	from = call->from;
	woken = call->woken;
	ran = call->ran;
	bpf_map_delete_elem(&calls, &key);
	if (!from)
		return 0;
	r = reserve(ONLY_KIND, sizeof(*r), bpf_ktime_get_ns(), key.tid);
	if (!r)
		return 0;
	r->from = from;
	r->woken = woken;
	r->ran = ran;
	r->tgid = p->tgid;
	r->step = key.step;
	submit(r);
	return 0;
}

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int step_session(struct pt_regs *ctx)
{
	return bpf_session_is_return() ? call_returns(ctx) : call_begins(ctx);
}

SEC("uprobe.multi")
int step_entry(struct pt_regs *ctx)
{
	return call_begins(ctx);
}

SEC("uretprobe.multi")
int step_return(struct pt_regs *ctx)
{
	return call_returns(ctx);
}
