// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Tries for locks of files that were in vain, and who held the lock.
 *
 * A program that must not wait in the kernel (SQLite's busy handler, `filelock` of Python) tries, sleeps and tries
 * again: nobody wakes it when the lock is free. Only threads of targets are looked at.
 */
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct try_record {
	struct head head; /* ts: when the thread tried again; tid: the thread */
	__u64 from;       /* when it had tried in vain */
	__u32 tgid;
	__u32 holder;     /* tgid of who held the lock then */
};

SHARED(try_record);

struct list_head {
	struct list_head *next;
} CORE;

struct file_lock_core {
	struct list_head flc_list;
	void *flc_owner;
	unsigned char flc_type;
	__s32 flc_pid;
} CORE;

struct file_lock {
	struct file_lock_core c;
	__s64 fl_start;
	__s64 fl_end;
} CORE;

struct file_lock___before_6_9 {
	struct list_head fl_list;
	void *fl_owner;
	unsigned char fl_type;
	unsigned int fl_pid;
} CORE;

struct file_lock_context {
	struct list_head flc_flock;
	struct list_head flc_posix;
} CORE;

struct inode {
	struct file_lock_context *i_flctx;
} CORE;

/* Types of locks, and what a try in vain returns (fcntl.h, errno.h). */
#define WRITES 1
#define UNLOCKS 2
#define IN_VAIN (-11)
/* Locks of one file that are looked through. */
#define LOCKS 64

/* What is read of a lock, on any kernel. */
struct lock {
	void *owner;
	__u32 type;
	__s32 pid;
};

/* The last try of a thread that was in vain. */
struct try {
	__u64 at;
	__u64 file; /* address of its inode, compared only */
	__u32 holder;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct try);
} tries SEC(".maps");

static __always_inline void read_lock(struct file_lock *fl, struct lock *lock)
{
	struct file_lock___before_6_9 *old = (void *)fl;

	if (bpf_core_field_exists(fl->c)) {
		lock->owner = BPF_CORE_READ(fl, c.flc_owner);
		lock->type = BPF_CORE_READ(fl, c.flc_type);
		lock->pid = BPF_CORE_READ(fl, c.flc_pid);
	} else {
		lock->owner = BPF_CORE_READ(old, fl_owner);
		lock->type = BPF_CORE_READ(old, fl_type);
		lock->pid = BPF_CORE_READ(old, fl_pid);
	}
}

/* The lock whose place in its list this is. */
static __always_inline struct file_lock *lock_at(struct list_head *place)
{
	struct file_lock *fl = NULL;
	struct file_lock___before_6_9 *old = NULL;
	long offset;

	if (bpf_core_field_exists(fl->c))
		offset = bpf_core_field_offset(fl->c) +
			 bpf_core_field_offset(((struct file_lock_core *)0)->flc_list);
	else
		offset = bpf_core_field_offset(old->fl_list);
	return (void *)place - offset;
}

/* The process that has the lock which was `wanted`, as `want` says, and cannot be had; 0 if none has it any more. */
static __always_inline __u32 holder_of(struct inode *inode, struct file_lock *wanted, const struct lock *want,
				       bool posix)
{
	struct file_lock_context *context = BPF_CORE_READ(inode, i_flctx);
	struct list_head *place, *end;
	__s64 from = BPF_CORE_READ(wanted, fl_start), to = BPF_CORE_READ(wanted, fl_end);

	if (!context)
		return 0;
	end = posix ? __builtin_preserve_access_index(&context->flc_posix) :
		      __builtin_preserve_access_index(&context->flc_flock);
	place = BPF_CORE_READ(end, next);
	for (int i = 0; i < LOCKS; i++) {
		struct file_lock *fl;
		struct lock has;

		if (!place || place == end)
			return 0;
		fl = lock_at(place);
		read_lock(fl, &has);
		if (has.owner != want->owner && (has.type == WRITES || want->type == WRITES) &&
		    (!posix || (BPF_CORE_READ(fl, fl_start) <= to && BPF_CORE_READ(fl, fl_end) >= from)))
			/* Of other hosts there are no processes here. */
			return has.pid > 0 ? has.pid : 0;
		place = BPF_CORE_READ(place, next);
	}
	return 0;
}

static __always_inline int tried(struct inode *inode, struct file_lock *fl, int ret, bool posix)
{
	struct task_struct *p;
	struct try *last, next = {};
	struct try_record *r;
	struct lock want;
	__u64 now;
	__u32 tid;

	/* Newer kernels say of the arguments of some tracepoints that they may be missing. */
	if (!inode || !fl || of_interest_until() != FOREVER)
		return 0;
	read_lock(fl, &want);
	if (want.type == UNLOCKS)
		return 0;
	p = bpf_get_current_task_btf();
	tid = p->pid;
	now = bpf_ktime_get_ns();
	last = bpf_map_lookup_elem(&tries, &tid);
	if (last && last->file == (__u64)inode) {
		r = reserve(ONLY_KIND, sizeof(*r), now, tid);
		if (r) {
			r->from = last->at;
			r->tgid = p->tgid;
			r->holder = last->holder;
			submit(r);
		}
		bpf_map_delete_elem(&tries, &tid);
	}
	if (ret != IN_VAIN)
		return 0;
	next.holder = holder_of(inode, fl, &want, posix);
	if (!next.holder)
		return 0;
	next.at = now;
	next.file = (__u64)inode;
	bpf_map_update_elem(&tries, &tid, &next, BPF_ANY);
	return 0;
}

SEC("tp_btf/posix_lock_inode")
int BPF_PROG(posix_lock_inode, struct inode *inode, struct file_lock *fl, int ret)
{
	return tried(inode, fl, ret, true);
}

SEC("tp_btf/flock_lock_inode")
int BPF_PROG(flock_lock_inode, struct inode *inode, struct file_lock *fl, int ret)
{
	return tried(inode, fl, ret, false);
}
