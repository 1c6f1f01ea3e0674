// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Collections of CPython's garbage collector, from its static probes gc__start and gc__done.
 *
 * Only threads of targets are looked at, and only collections that a step can feel are written.
 */
#include <asm/ptrace.h>
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct pause_record {
	struct head head; /* ts: when it ended */
	__u64 from;       /* when it began */
	__u32 tgid;
	__u32 pad;
};

SHARED(pause_record);

/* Shorter collections are not written: those of the youngest objects come by the hundred a second. */
#define SHORTEST_NS 200000ULL

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} begun SEC(".maps");

SEC("uprobe.multi")
int gc_begins(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u32 tid = p->pid;
	__u64 now;

	if (!t)
		return 0;
	became_target(t, p);
	if (t->until != FOREVER)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_map_update_elem(&begun, &tid, &now, BPF_ANY);
	return 0;
}

SEC("uprobe.multi")
int gc_ends(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u32 tid = p->pid;
	__u64 *at = bpf_map_lookup_elem(&begun, &tid), from, now;
	struct pause_record *r;

	if (!at)
		return 0;
	from = *at;
	bpf_map_delete_elem(&begun, &tid);
	now = bpf_ktime_get_ns();
	if (now - from < SHORTEST_NS)
		return 0;
	r = reserve(ONLY_KIND, sizeof(*r), now, tid);
	if (!r)
		return 0;
	r->from = from;
	r->tgid = p->tgid;
	r->pad = 0;
	submit(r);
	return 0;
}
