/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sums for each process, under one of the probe's slots (a disk, a NIC, 0), which `process_sums.rs`
 * reads ten times a second. They are totals since the entry was made; when the map is full the least
 * recently used entry is evicted, and then a slot's total is more than the sum of its processes'.
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
	__u64 n[SUMS];
	char comm[TASK_COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512); /* more on many CPUs, by user space */
	__type(key, struct sum_key);
	__type(value, struct sum);
} sums SEC(".maps");

/* Changes whenever `sums` does, so that user space reads it only then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sums_changed SEC(".maps");

/* The sums of `key`; `comm` is what a new entry is called, NULL for the running thread's. */
static __always_inline struct sum *sum_of(struct sum_key *key, const char *comm)
{
	__u32 zero = 0;
	__u64 *changed = bpf_map_lookup_elem(&sums_changed, &zero);
	struct sum *sum = bpf_map_lookup_elem(&sums, key);

	if (changed)
		(*changed)++; /* two CPUs may write the same value: it has changed nonetheless */
	if (!sum) {
		struct sum fresh = { .born = bpf_ktime_get_ns() };

		if (comm)
			__builtin_memcpy(fresh.comm, comm, sizeof(fresh.comm));
		else
			bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
		bpf_map_update_elem(&sums, key, &fresh, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&sums, key);
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
