// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#define PROBE PROBE_BLOCK_IO
#define PENDINGS 1
#include "gpuwhy.h"
#include "sums.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define DISKS 64
#define DISK_NAME_LEN 32
#define REQ_OP_MASK 0xff
#define REQ_OP_READ 0
#define REQ_OP_WRITE 1
#define REQ_OP_FLUSH 2
#define REQ_OP_ZONE_APPEND 7

struct gendisk {
	int major;
	int first_minor;
	char disk_name[DISK_NAME_LEN];
} CORE;

struct request_queue {
	struct gendisk *disk;
} CORE;

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	__u64 __sector;
} CORE;

/* Before 5.15. */
struct request___rq_disk {
	struct gendisk *rq_disk;
} CORE;

/* Their numbers differ between kernels. */
enum req_flag_bits {
	__REQ_SYNC,
	__REQ_FUA,
	__REQ_PREFLUSH,
	__REQ_RAHEAD,
};

#define HAS(flags, bit) ((flags) & (1U << bpf_core_enum_value(enum req_flag_bits, bit)))

/* One disk: totals since it was first seen. Keep in step with `block_io.rs`. */
struct disk {
	__u64 dev;     /* major << 32 | minor, + 1; 0 for a free slot */
	__u64 bytes;   /* completed */
	__u64 device_ns; /* issue to completion, summed */
	__u32 flusher; /* who last asked for the device's cache to be flushed */
	__u32 flusher_tgid;
	__u32 flusher_wanted;
	__u32 pad;
	char flusher_comm[TASK_COMM_LEN];
	char name[DISK_NAME_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DISKS);
	__type(key, __u32);
	__type(value, struct disk);
} disks SEC(".maps");

/*
 * A request on its way. Requests live in pools and are used again, so that a table of fixed places
 * found by their address serves; it costs a fifth of a hash map, three times for each request.
 */
struct way {
	__u64 request; /* its address; 0 for a place that nobody has had */
	__u64 begin;   /* 0 when it is completed; the place is kept for the next time */
	__u64 issued; /* 0 while it waits */
	__u64 sector;
	__u64 done;   /* bytes completed in parts */
	__u32 bytes;
	__u32 tid;
	__u32 tgid;
	__u32 issuer; /* who gave it to the device, in its own context; 0 if not seen */
	__u32 issuer_tgid;
	__u16 disk;
	__u8 op;
	__u8 sync;
	__u8 wanted;  /* of a thread of interest */
	__u8 pad[7];
	char comm[TASK_COMM_LEN];
};

#define WAYS 8192
#define TRIES 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WAYS);
	__type(key, __u32);
	__type(value, struct way);
} ways SEC(".maps");

/* The rows that requests of others may become, for each CPU. Keep in step with `block_io.rs`. */
struct allowance {
	__u64 spent_until;
	__u64 summed; /* requests of others that became no rows of their own */
	__u64 lost;   /* requests that there was no room to follow */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* the number of CPUs, by user space */
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/* ns of allowance that one row costs, and how much may be saved up. */
const volatile __u64 row_ns = 500000;
const volatile __u64 burst_ns = 100000000;

/* As `struct Request` in `block_io.rs`. */
struct record {
	struct head head; /* ts: when it was completed; tid: who submitted it */
	__u64 begin;
	__u64 issued;
	__u64 sector;
	__u64 bytes;
	__u32 tgid;
	__u16 disk;
	__u8 op;
	__u8 sync;
	__u32 issuer; /* 0 if not seen */
	__u32 issuer_tgid;
	char comm[TASK_COMM_LEN];
};

SHARED(record);

static __always_inline struct allowance *allowance(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&allowances, &cpu);
}

static __always_inline bool allowed(struct allowance *allowance, __u64 now)
{
	__u64 until = allowance->spent_until > now ? allowance->spent_until : now;

	if (until - now > burst_ns)
		return false;
	allowance->spent_until = until + row_ns;
	return true;
}

/* The slot of the request's disk; DISKS for none. */
static __always_inline __u32 disk_of(struct request *rq)
{
	struct gendisk *gendisk;
	__u64 dev;
	__u32 at;

	if (bpf_core_field_exists(rq->q->disk))
		gendisk = rq->q->disk;
	else
		gendisk = ((struct request___rq_disk *)rq)->rq_disk;
	if (!gendisk)
		return DISKS;
	dev = ((__u64)gendisk->major << 32 | (__u32)gendisk->first_minor) + 1;
	at = (dev ^ (dev >> 26)) % DISKS;
	for (int i = 0; i < 8; i++) {
		__u32 slot = (at + i) % DISKS;
		struct disk *disk = bpf_map_lookup_elem(&disks, &slot);

		if (!disk)
			return DISKS;
		if (disk->dev == dev)
			return slot;
		if (!disk->dev && __sync_val_compare_and_swap(&disk->dev, 0, dev) == 0) {
			bpf_probe_read_kernel_str(disk->name, sizeof(disk->name),
						  gendisk->disk_name);
			return slot;
		}
		if (disk->dev == dev)
			return slot;
	}
	return DISKS;
}

static __always_inline bool in_task(void)
{
	struct cpu *cpu = this_cpu();

	return !cpu || !(cpu->softirq_vec || cpu->hardirq_depth);
}

/* The place of a request on its way; `fresh` puts it on its way, if a place is free. */
static __always_inline struct way *way_of(struct request *rq, bool fresh)
{
	struct way *way, *free = NULL;
	__u64 key, before;
	__u32 at;

	/* The verifier allows no arithmetic on a pointer; what was read is only a number. */
	bpf_probe_read_kernel(&key, sizeof(key), &rq);
	/* Requests are some hundred bytes apart. */
	at = (key >> 6) ^ (key >> 19);
	for (int i = 0; i < TRIES; i++) {
		__u32 place = (at + i) % WAYS;

		way = bpf_map_lookup_elem(&ways, &place);
		if (!way)
			return NULL;
		if (way->request == key)
			return fresh || way->begin ? way : NULL;
		if (!free && !way->begin)
			free = way;
	}
	if (!fresh || !free)
		return NULL;
	before = free->request;
	return __sync_val_compare_and_swap(&free->request, before, key) == before ? free : NULL;
}

static __always_inline void fill(struct way *way, struct request *rq, __u32 slot, __u64 now)
{
	__u32 flags = rq->cmd_flags;
	__u64 id = bpf_get_current_pid_tgid();

	way->begin = now;
	way->issued = way->done = 0;
	way->sector = rq->__sector;
	way->bytes = rq->__data_len;
	way->op = flags & REQ_OP_MASK;
	way->sync = (way->op == REQ_OP_READ && !HAS(flags, __REQ_RAHEAD)) ||
		    way->op == REQ_OP_FLUSH || HAS(flags, __REQ_SYNC) || HAS(flags, __REQ_FUA) ||
		    HAS(flags, __REQ_PREFLUSH);
	way->disk = slot;
	way->tid = way->tgid = way->issuer = way->issuer_tgid = 0;
	way->wanted = 0;
	way->comm[0] = 0;
	/* Whoever runs while an interrupt issues a request has nothing to do with it. */
	if (in_task()) {
		way->tid = id;
		way->tgid = id >> 32;
		way->wanted = of_interest(now);
		bpf_get_current_comm(way->comm, sizeof(way->comm));
	}
}

static __always_inline struct way *begin(struct request *rq, __u64 now)
{
	__u32 slot = disk_of(rq);
	struct disk *disk;
	struct way *way;

	if (slot >= DISKS)
		return NULL;
	way = way_of(rq, true);
	if (!way) {
		struct allowance *mine = allowance();

		if (mine)
			mine->lost++;
		return NULL;
	}
	fill(way, rq, slot, now);
	/* An empty write that asks for a flush becomes a flush of its own, issued by anyone. */
	if (HAS(rq->cmd_flags, __REQ_PREFLUSH) && way->tid) {
		disk = bpf_map_lookup_elem(&disks, &slot);
		if (disk) {
			disk->flusher = way->tid;
			disk->flusher_tgid = way->tgid;
			disk->flusher_wanted = way->wanted;
			__builtin_memcpy(disk->flusher_comm, way->comm, sizeof(way->comm));
		}
	}
	return way;
}

/* A request is made, by the thread that wants it, and held back in its plug at most. */
SEC("tp_btf/block_io_start")
int BPF_PROG(block_io_start, struct request *rq)
{
	begin(rq, bpf_ktime_get_ns());
	return 0;
}

/* Where the kernel has no block_io_start (before 6.5), a request begins here. */
SEC("tp_btf/block_rq_insert")
int BPF_PROG(block_rq_insert, struct request *rq)
{
	if (!way_of(rq, false))
		begin(rq, bpf_ktime_get_ns());
	return 0;
}

/* A worker that issues requests of interest is waited for like a waker, so its own time is of
 * interest for as long. */
#define WORKER_NS 1000000000ULL

static __always_inline void issued_by_current(struct way *way, __u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task;

	if (!in_task())
		return;
	way->issuer = p->pid;
	way->issuer_tgid = p->tgid;
	if (!way->wanted || way->issuer == way->tid)
		return;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (task && task->until != FOREVER)
		task->until = now + WORKER_NS;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *rq)
{
	__u64 now = bpf_ktime_get_ns();
	struct way *way = way_of(rq, false);

	if (!way) {
		/* Not accounted by the kernel: a flush, or a command passed through. */
		way = begin(rq, now);
		if (!way)
			return 0;
		if (way->op == REQ_OP_FLUSH) {
			__u32 slot = way->disk;
			struct disk *disk = bpf_map_lookup_elem(&disks, &slot);

			if (disk && disk->flusher) {
				way->tid = disk->flusher;
				way->tgid = disk->flusher_tgid;
				way->wanted = disk->flusher_wanted;
				__builtin_memcpy(way->comm, disk->flusher_comm, sizeof(way->comm));
			}
		}
	}
	/* It may have grown by merging since it began, and may be issued again after a shortage. */
	way->issued = now;
	issued_by_current(way, now);
	way->bytes = rq->__data_len;
	way->sector = rq->__sector;
	return 0;
}

/* Became a part of another one. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(block_rq_merge, struct request *rq)
{
	struct way *way = way_of(rq, false);

	if (way)
		way->begin = 0;
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *rq, int error, unsigned int bytes)
{
	struct way *way = way_of(rq, false);
	struct allowance *mine;
	struct disk *disk;
	__u64 now, device_ns, moved;
	__u32 slot;

	if (!way)
		return 0;
	way->done += bytes;
	if (rq->__data_len > bytes)
		return 0; /* a part of it */
	now = bpf_ktime_get_ns();
	device_ns = way->issued ? now - way->issued : 0;
	slot = way->disk;
	/* Discarded gigabytes have moved nowhere. */
	moved = way->op == REQ_OP_READ || way->op == REQ_OP_WRITE || way->op == REQ_OP_ZONE_APPEND ?
			way->done : 0;
	disk = bpf_map_lookup_elem(&disks, &slot);
	if (disk) {
		__sync_fetch_and_add(&disk->bytes, moved);
		__sync_fetch_and_add(&disk->device_ns, device_ns);
	}
	if (way->tgid) {
		struct pending *pending = pending_of(0, way->tgid, slot, way->comm);

		if (pending) {
			pending->n[0] += moved;
			pending->n[1] += device_ns;
		}
	}
	mine = allowance();
	if (mine) {
		if (way->wanted || allowed(mine, now)) {
			struct record *record = reserve(KIND(0), sizeof(*record), now, way->tid);

			if (record) {
				record->begin = way->begin;
				record->issued = way->issued;
				record->sector = way->sector;
				record->bytes = way->done;
				record->tgid = way->tgid;
				record->disk = slot;
				record->op = way->op;
				record->sync = way->sync;
				record->issuer = way->issuer;
				record->issuer_tgid = way->issuer_tgid;
				__builtin_memcpy(record->comm, way->comm, sizeof(record->comm));
				submit(record);
			}
		} else {
			mine->summed++;
		}
	}
	way->begin = 0;
	return 0;
}
