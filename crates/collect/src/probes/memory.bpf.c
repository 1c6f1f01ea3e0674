// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#define PENDINGS 3
#include "gpuwhy.h"
#include "process_sums.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What is summed for each process. */
enum summed {
	SUMMED_EVICTED,    /* pages that left the page cache */
	SUMMED_ADDED,      /* pages that entered it */
	SUMMED_RECLAIM_NS,
	SUMMED_MISSED,     /* pages of a file's existing data that entered it; slot: the process that had
			      evicted as many pages of that file last, 0 if none was seen to */
};

enum kind {
	KIND_SPAN,   /* a thread freed memory */
	KIND_KSWAPD, /* kswapd woke up */
	KIND_OOM,    /* a victim of the OOM killer */
};

/* How a thread freed memory. */
enum effort {
	EFFORT_DIRECT_RECLAIM,
	EFFORT_MEMCG_RECLAIM,
	EFFORT_COMPACTION,
};

SHARED_ENUM(summed);
SHARED_ENUM(kind);
SHARED_ENUM(effort);

typedef struct {
	unsigned long f;
} CORE memdesc_flags_t;

struct super_block {
	__u32 s_dev;
} CORE;

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	__s64 i_size;
} CORE;

struct address_space {
	struct inode *host;
} CORE;

struct folio {
	unsigned long flags;
	struct address_space *mapping;
	unsigned long index; /* in pages */
	unsigned long _flags_1; /* since 6.6 its low byte is the order */
} CORE;

/* Since 6.18. */
struct folio___memdesc {
	memdesc_flags_t flags;
} CORE;

/* 5.18 to 6.5. */
struct folio___order {
	unsigned char _folio_order;
} CORE;

enum pageflags {
	PG_head,
};

/* When a thread began to free memory; by tid << 8 | enum effort. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} begun SEC(".maps");

/* A record of any kind. */
struct record {
	struct head head; /* ts: the end; tid: the thread that freed memory */
	__u64 begin;
	__u64 value;      /* pages freed; pid of the victim */
	__u32 tgid;
	__u32 effort;
	char comm[TASK_COMM_LEN];
};

SHARED(record);

struct file_key {
	__u64 inode;
	__u32 dev;
	__u32 pad;
};

struct evicted {
	__u64 pages; /* that were evicted and have not been added again */
	__u32 by;    /* the process that evicted pages last */
	__u32 pad;
};

/* Files of which pages were evicted; those that nobody uses are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct file_key);
	__type(value, struct evicted);
} evicted_files SEC(".maps");

/* Of the smallest pages. With larger ones, what is written behind the end of a short file is taken for data. */
#define PAGE_SHIFT 12

/* Whose page it is; NULL before 5.16, and for pages of no file. */
static __always_inline struct inode *file_of(struct folio *folio, struct file_key *key)
{
	struct inode *inode;

	if (!bpf_core_type_exists(struct folio))
		return NULL;
	inode = BPF_CORE_READ(folio, mapping, host);
	if (!inode)
		return NULL;
	key->inode = BPF_CORE_READ(inode, i_ino);
	key->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	key->pad = 0;
	return inode;
}

static __always_inline void note_evicted(struct folio *folio, __u32 tgid, __u64 pages)
{
	struct file_key key;
	struct evicted *file, first = { .pages = pages, .by = tgid };

	if (!file_of(folio, &key))
		return;
	file = bpf_map_lookup_elem(&evicted_files, &key);
	if (!file) {
		bpf_map_update_elem(&evicted_files, &key, &first, BPF_ANY);
		return;
	}
	/* Two CPUs that evict pages of one file may count a few too little. */
	file->pages += pages;
	file->by = tgid;
}

/* Pages of data that the file had already were not in memory. */
static __always_inline void note_missed(struct folio *folio, __u32 tgid, __u64 pages)
{
	struct pending *pending;
	struct file_key key;
	struct evicted *file;
	struct inode *inode = file_of(folio, &key);
	__u32 by = 0;

	if (!inode)
		return;
	/* What is written behind the end was never there. */
	if (BPF_CORE_READ(folio, index) << PAGE_SHIFT >= BPF_CORE_READ(inode, i_size))
		return;
	file = bpf_map_lookup_elem(&evicted_files, &key);
	if (file && file->pages) {
		by = file->by;
		file->pages = file->pages > pages ? file->pages - pages : 0;
	}
	pending = pending_of(2, tgid, by, COMM_RUNNING);
	if (pending)
		pending->n[SUMMED_MISSED] += pages;
}

static __always_inline __u64 pages_of(struct folio *folio)
{
	unsigned long flags, first;
	struct folio___memdesc *memdesc = (void *)folio;
	struct folio___order *order = (void *)folio;

	if (!bpf_core_type_exists(struct folio))
		return 1; /* before 5.16: a page */
	flags = bpf_core_field_exists(memdesc->flags) ? BPF_CORE_READ(memdesc, flags.f) :
							 BPF_CORE_READ(folio, flags);
	if (!(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(order->_folio_order))
		return 1ULL << (BPF_CORE_READ(order, _folio_order) & 31);
	if (!bpf_core_field_exists(folio->_flags_1))
		return 1;
	first = BPF_CORE_READ(folio, _flags_1);
	return 1ULL << (first & 31);
}

/* A page leaves the page cache because of the running thread: truncation, advice, reclaim. */
SEC("tp_btf/mm_filemap_delete_from_page_cache")
int BPF_PROG(mm_filemap_delete_from_page_cache, struct folio *folio)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct pending *pending = pending_of(0, tgid, 0, COMM_RUNNING);
	__u64 pages = pages_of(folio);

	if (pending)
		pending->n[SUMMED_EVICTED] += pages;
	note_evicted(folio, tgid, pages);
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(mm_filemap_add_to_page_cache, struct folio *folio)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct pending *pending = pending_of(1, tgid, 0, COMM_RUNNING);
	__u64 pages = pages_of(folio);

	if (pending)
		pending->n[SUMMED_ADDED] += pages;
	note_missed(folio, tgid, pages);
	return 0;
}

static __always_inline int effort_begins(enum effort effort)
{
	__u64 key = (bpf_get_current_pid_tgid() << 32 >> 24) | effort;
	__u64 now = bpf_ktime_get_ns();

	/* Where there is no room, the end finds no beginning and nothing is recorded. */
	bpf_map_update_elem(&begun, &key, &now, BPF_ANY);
	return 0;
}

static __always_inline int effort_ends(enum effort effort, __u64 freed)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u64 key = (id << 32 >> 24) | effort;
	__u64 now = bpf_ktime_get_ns(), since;
	__u64 *begin = bpf_map_lookup_elem(&begun, &key);
	struct record *record;

	if (!begin)
		return 0;
	since = *begin;
	bpf_map_delete_elem(&begun, &key);
	if (effort != EFFORT_COMPACTION) {
		struct sum_key process = { .tgid = id >> 32 };
		struct sum *sum = sum_of(&process, NULL);

		if (sum)
			sum_add(&sum->n[SUMMED_RECLAIM_NS], now - since);
	}
	if (!of_interest(now))
		return 0;
	record = reserve(KIND_SPAN, sizeof(*record), now, (__u32)id);
	if (!record)
		return 0;
	record->begin = since;
	record->value = freed;
	record->tgid = id >> 32;
	record->effort = effort;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	submit(record);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(mm_vmscan_direct_reclaim_begin)
{
	return effort_begins(EFFORT_DIRECT_RECLAIM);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(mm_vmscan_direct_reclaim_end, unsigned long freed)
{
	return effort_ends(EFFORT_DIRECT_RECLAIM, freed);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(mm_vmscan_memcg_reclaim_begin)
{
	return effort_begins(EFFORT_MEMCG_RECLAIM);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(mm_vmscan_memcg_reclaim_end, unsigned long freed)
{
	return effort_ends(EFFORT_MEMCG_RECLAIM, freed);
}

SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(mm_compaction_begin)
{
	return effort_begins(EFFORT_COMPACTION);
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(mm_compaction_end)
{
	return effort_ends(EFFORT_COMPACTION, 0);
}

static __always_inline int record_event(__u8 kind, __u64 value, const char *comm)
{
	__u64 now = bpf_ktime_get_ns();
	struct record *record = reserve(kind, sizeof(*record), now, 0);

	if (!record)
		return 0;
	record->begin = now;
	record->value = value;
	record->tgid = 0;
	record->effort = 0;
	if (comm)
		bpf_probe_read_kernel(record->comm, sizeof(record->comm), comm);
	else
		__builtin_memset(record->comm, 0, sizeof(record->comm));
	submit(record);
	return 0;
}

SEC("tp_btf/mm_vmscan_kswapd_wake")
int BPF_PROG(mm_vmscan_kswapd_wake, int node)
{
	return record_event(KIND_KSWAPD, node, NULL);
}

/* Since 6.10 with the task; for older kernels user space leaves this out. */
SEC("tp_btf/mark_victim")
int BPF_PROG(mark_victim, struct task_struct *victim)
{
	return record_event(KIND_OOM, victim->tgid, victim->comm);
}
