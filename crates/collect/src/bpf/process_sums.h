/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sums for each process, under one of the probe's slots (a disk, a NIC, 0), which `process_sums.rs`
 * reads ten times a second without a system call. They are totals since the entry was made. A process has
 * one of the TRIED entries from the one on that its number gives; when all of these are taken, the one
 * that was not used for longest changes hands, and then a slot's total is more than the sum of its
 * processes'. User space frees the entries that are no longer used; a process may have two for a while,
 * whose sums count together.
 */
#ifndef PROCESS_SUMS_H
#define PROCESS_SUMS_H

#include "gpuwhy.h"

#define SUMS 4

struct sum_key {
	__u32 tgid;
	__u32 slot;
};

struct sum {
	__u64 born; /* tells an entry from the next one of the same key */
	__u64 used; /* jiffies of the last addition */
	__u64 n[SUMS];
	char comm[TASK_COMM_LEN];
};

#define SUM_ENTRIES 4096
#define SUM_ENTRIES_LOG2 12
#define TRIED 8
#define CHANGES_HANDS (~0ULL)

/*
 * The keys of the entries, tgid << 32 | slot; 0 for one that is free. Apart from them, since user space looks
 * at all keys and at few entries.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SUM_ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} sum_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SUM_ENTRIES);
	__type(key, __u32);
	__type(value, struct sum);
} sums SEC(".maps");

/* Change whenever `sums` and `sum_keys` do, so that user space reads them only then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} sums_changed SEC(".maps");

/* The entry of `key`, which is made if there is none; NULL while another CPU makes it. */
static __noinline struct sum *entry_of(__u64 key)
{
	__u32 first = (key * 0x9e3779b97f4a7c15ULL) >> (64 - SUM_ENTRIES_LOG2);
	__u32 chosen = SUM_ENTRIES, at;
	__u64 oldest = ~0ULL, before = 0, *holds, *made;
	__u32 one = 1;
	struct sum *sum;

	for (int i = 0; i < TRIED; i++) {
		at = (first + i) & (SUM_ENTRIES - 1);
		holds = bpf_map_lookup_elem(&sum_keys, &at);
		sum = bpf_map_lookup_elem(&sums, &at);
		if (!holds || !sum)
			return NULL;
		if (*holds == key)
			return sum;
		if (!*holds) {
			chosen = at;
			before = 0;
			break;
		}
		if (*holds != CHANGES_HANDS && sum->used < oldest) {
			oldest = sum->used;
			chosen = at;
			before = *holds;
		}
	}
	holds = bpf_map_lookup_elem(&sum_keys, &chosen);
	sum = bpf_map_lookup_elem(&sums, &chosen);
	if (!holds || !sum)
		return NULL;
	if (__sync_val_compare_and_swap(holds, before, CHANGES_HANDS) != before)
		return NULL;
	sum->born = bpf_ktime_get_ns();
	__builtin_memset(sum->n, 0, sizeof(sum->n));
	__builtin_memset(sum->comm, 0, sizeof(sum->comm));
	barrier();
	*holds = key;
	made = bpf_map_lookup_elem(&sums_changed, &one);
	if (made)
		__sync_fetch_and_add(made, 1);
	return sum;
}

/* The sums of `key`; `comm` is what a new entry is called, NULL for the running thread's. */
static __always_inline struct sum *sum_of(struct sum_key *key, const char *comm)
{
	__u32 zero = 0;
	__u64 *changed = bpf_map_lookup_elem(&sums_changed, &zero);
	struct sum *sum;

	if (!key->tgid)
		return NULL;
	sum = entry_of((__u64)key->tgid << 32 | key->slot);
	if (!sum)
		return NULL;
	if (changed)
		(*changed)++; /* two CPUs may write the same value: it has changed nonetheless */
	sum->used = bpf_jiffies64();
	if (!sum->comm[0]) {
		if (comm)
			__builtin_memcpy(sum->comm, comm, sizeof(sum->comm));
		else
			bpf_get_current_comm(sum->comm, sizeof(sum->comm));
	}
	return sum;
}

static __always_inline void sum_add(__u64 *n, __u64 value)
{
	__sync_fetch_and_add(n, value);
}

/*
 * What one process did in a row on one CPU, until another process follows: thousands of pages or
 * packets cost one look-up in the shared map. User space adds what is pending. Each BPF program has
 * entries of its own, as the kernel runs no program inside itself.
 */
struct pending {
	struct sum_key key;
	__u64 n[SUMS];
	char comm[TASK_COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PENDINGS); /* times the number of CPUs, by user space */
	__type(key, __u32);
	__type(value, struct pending);
} pendings SEC(".maps");

/* What a process is called, for `pending_of`: what the running thread is, or unknown. */
#define COMM_RUNNING ((const char *)0)
#define COMM_UNKNOWN ""

/* The pending sums of `tgid`, called `comm`, in slot `slot`, of this CPU and the program `which`. */
static __always_inline struct pending *pending_of(__u32 which, __u32 tgid, __u32 slot,
						  const char *comm)
{
	__u32 i = bpf_get_smp_processor_id() * PENDINGS + which;
	struct pending *pending = bpf_map_lookup_elem(&pendings, &i);

	if (!pending)
		return NULL;
	if (pending->key.tgid != tgid || pending->key.slot != slot) {
		struct sum_key key = pending->key;
		__u64 n[SUMS];

		/*
		 * Cleared here before it is added there: user space reads there first, and may find it
		 * in neither for a moment, but never twice.
		 */
		__builtin_memcpy(n, pending->n, sizeof(n));
		__builtin_memset(pending->n, 0, sizeof(pending->n));
		barrier();
		if (key.tgid) {
			struct sum *sum = sum_of(&key, pending->comm);

			for (int i = 0; sum && i < SUMS; i++)
				if (n[i])
					sum_add(&sum->n[i], n[i]);
		}
		pending->key.tgid = tgid;
		pending->key.slot = slot;
		if (comm == COMM_RUNNING)
			bpf_get_current_comm(pending->comm, sizeof(pending->comm));
		else if (!comm[0])
			pending->comm[0] = 0;
		else
			__builtin_memcpy(pending->comm, comm, sizeof(pending->comm));
	}
	return pending;
}

#endif
