// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#define PENDINGS 1
#include "gpuwhy.h"
#include "process_sums.h"

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

/* One disk: totals since it was first seen. */
struct disk {
	__u64 dev;     /* major << 32 | minor, + 1; 0 for a free slot */
	__u64 bytes;   /* completed */
	__u64 device_ns; /* issue to completion, summed */
	__u32 flusher; /* the thread that last asked for the device's cache to be flushed */
	__u32 flusher_tgid;
	__u32 flusher_of_interest;
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
 * A request that is not completed. Requests live in pools and are used again, so that a table of
 * fixed places found by their address is enough; it costs a fifth of a hash map, three times for
 * each request.
 */
struct inflight {
	__u64 request; /* its address; 0 for a place that was never used */
	__u64 begin;   /* 0 when it is completed, the place being kept for the next time; or CLAIMED */
	__u64 issued; /* 0 while it waits */
	__u64 sector;
	__u64 done;   /* bytes completed in parts */
	__u32 bytes;
	__u32 tid;
	__u32 tgid;
	__u32 issuer; /* the thread that issued it to the device, in its own context; 0 if not seen */
	__u32 issuer_tgid;
	__u16 disk;
	__u8 op;
	__u8 sync;
	__u8 of_interest; /* whether a thread of interest made it */
	__u8 pad[7];
	char comm[TASK_COMM_LEN];
};

/* `begin` of a place that a CPU has taken and not yet filled. */
#define CLAIMED 1

#define INFLIGHTS 8192
#define TRIES 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INFLIGHTS);
	__type(key, __u32);
	__type(value, struct inflight);
} inflights SEC(".maps");

/* How many requests of threads not of interest may become rows, for each CPU. */
struct allowance {
	__u64 spent_until;
	__u64 summed; /* requests that became no rows of their own */
	__u64 lost;   /* requests for which there was no place in `inflights` */
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

/* A request that is completed. */
struct record {
	struct head head; /* ts: when it was completed; tid: the thread that submitted it */
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

/* The address of a request; the verifier allows no arithmetic on a pointer, what was read is only a number. */
static __always_inline __u64 address_of(struct request *rq)
{
	__u64 address;

	bpf_probe_read_kernel(&address, sizeof(address), &rq);
	return address;
}

/* The i-th place where a request may lie; requests are some hundred bytes apart. */
static __always_inline struct inflight *place_of(__u64 address, int i)
{
	__u32 place = ((__u32)((address >> 6) ^ (address >> 19)) + i) % INFLIGHTS;

	return bpf_map_lookup_elem(&inflights, &place);
}

/* The place where a request lies or lay last. */
static __always_inline struct inflight *latest_of(__u64 address)
{
	for (int i = 0; i < TRIES; i++) {
		struct inflight *io = place_of(address, i);

		if (!io || io->request == address)
			return io;
	}
	return NULL;
}

/* The place of a request that is not completed. */
static __always_inline struct inflight *inflight_of(struct request *rq)
{
	struct inflight *io = latest_of(address_of(rq));

	return io && io->begin > CLAIMED ? io : NULL;
}

/* A place for a request that begins: the one it had before, or a free one; NULL if all are taken. */
static __always_inline struct inflight *claim(struct request *rq)
{
	__u64 address = address_of(rq);
	struct inflight *io = latest_of(address);

	if (io) {
		/* It is still in flight there if its completion was missed. */
		__u64 before = io->begin;

		if (before != CLAIMED &&
		    __sync_val_compare_and_swap(&io->begin, before, CLAIMED) == before)
			return io;
	}
	for (int i = 0; i < TRIES; i++) {
		io = place_of(address, i);
		if (!io)
			return NULL;
		if (io->begin || __sync_val_compare_and_swap(&io->begin, 0, CLAIMED))
			continue;
		io->request = address;
		return io;
	}
	return NULL;
}

static __always_inline void fill(struct inflight *io, struct request *rq, __u32 slot, __u64 now)
{
	__u32 flags = rq->cmd_flags;
	__u64 id = bpf_get_current_pid_tgid();

	io->issued = io->done = 0;
	io->sector = rq->__sector;
	io->bytes = rq->__data_len;
	io->op = flags & REQ_OP_MASK;
	io->sync = (io->op == REQ_OP_READ && !HAS(flags, __REQ_RAHEAD)) ||
		    io->op == REQ_OP_FLUSH || HAS(flags, __REQ_SYNC) || HAS(flags, __REQ_FUA) ||
		    HAS(flags, __REQ_PREFLUSH);
	io->disk = slot;
	io->tid = io->tgid = io->issuer = io->issuer_tgid = 0;
	io->of_interest = 0;
	io->comm[0] = 0;
	/* While an interrupt makes a request, the running thread has nothing to do with it. */
	if (in_task()) {
		io->tid = id;
		io->tgid = id >> 32;
		io->of_interest = of_interest(now);
		bpf_get_current_comm(io->comm, sizeof(io->comm));
	}
	io->begin = now;
}

static __always_inline struct inflight *begin_request(struct request *rq, __u64 now)
{
	__u32 slot = disk_of(rq);
	struct disk *disk;
	struct inflight *io;

	if (slot >= DISKS)
		return NULL;
	io = claim(rq);
	if (!io) {
		struct allowance *mine = allowance();

		if (mine)
			mine->lost++;
		return NULL;
	}
	fill(io, rq, slot, now);
	/* An empty write that asks for a flush becomes a flush of its own, issued by any thread. */
	if (HAS(rq->cmd_flags, __REQ_PREFLUSH) && io->tid) {
		disk = bpf_map_lookup_elem(&disks, &slot);
		if (disk) {
			disk->flusher = io->tid;
			disk->flusher_tgid = io->tgid;
			disk->flusher_of_interest = io->of_interest;
			__builtin_memcpy(disk->flusher_comm, io->comm, sizeof(io->comm));
		}
	}
	return io;
}

/* A request is made, by the thread that needs it; it may be held back in that thread's plug. */
SEC("tp_btf/block_io_start")
int BPF_PROG(block_io_start, struct request *rq)
{
	begin_request(rq, bpf_ktime_get_ns());
	return 0;
}

/* Where the kernel has no block_io_start (before 6.5), a request begins here. */
SEC("tp_btf/block_rq_insert")
int BPF_PROG(block_rq_insert, struct request *rq)
{
	if (!inflight_of(rq))
		begin_request(rq, bpf_ktime_get_ns());
	return 0;
}

/* A thread of interest waits for the worker that issues its request as for a waker, so the worker is
 * of interest for as long. */
#define WORKER_NS 1000000000ULL

static __always_inline void issued_by_current(struct inflight *io, __u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task;

	if (!in_task())
		return;
	io->issuer = p->pid;
	io->issuer_tgid = p->tgid;
	if (!io->of_interest || io->issuer == io->tid)
		return;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (task && task->until != FOREVER)
		task->until = now + WORKER_NS;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *rq)
{
	__u64 now = bpf_ktime_get_ns();
	struct inflight *io = inflight_of(rq);

	if (!io) {
		/* Not accounted by the kernel: a flush, or a command passed through. */
		io = begin_request(rq, now);
		if (!io)
			return 0;
		if (io->op == REQ_OP_FLUSH) {
			__u32 slot = io->disk;
			struct disk *disk = bpf_map_lookup_elem(&disks, &slot);

			if (disk && disk->flusher) {
				io->tid = disk->flusher;
				io->tgid = disk->flusher_tgid;
				io->of_interest = disk->flusher_of_interest;
				__builtin_memcpy(io->comm, disk->flusher_comm, sizeof(io->comm));
			}
		}
	}
	/* It may have grown by merging since it began, and may be issued again after a shortage. */
	io->issued = now;
	issued_by_current(io, now);
	io->bytes = rq->__data_len;
	io->sector = rq->__sector;
	return 0;
}

/* It became a part of another request. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(block_rq_merge, struct request *rq)
{
	struct inflight *io = inflight_of(rq);

	if (io)
		io->begin = 0;
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *rq, int error, unsigned int bytes)
{
	struct inflight *io = inflight_of(rq);
	struct allowance *mine;
	struct disk *disk;
	__u64 now, device_ns, moved;
	__u32 slot;

	if (!io)
		return 0;
	io->done += bytes;
	if (rq->__data_len > bytes)
		return 0; /* a part of it */
	now = bpf_ktime_get_ns();
	device_ns = io->issued ? now - io->issued : 0;
	slot = io->disk;
	/* Discarded bytes are not transferred. */
	moved = io->op == REQ_OP_READ || io->op == REQ_OP_WRITE || io->op == REQ_OP_ZONE_APPEND ?
			io->done : 0;
	disk = bpf_map_lookup_elem(&disks, &slot);
	if (disk) {
		__sync_fetch_and_add(&disk->bytes, moved);
		__sync_fetch_and_add(&disk->device_ns, device_ns);
	}
	if (io->tgid) {
		struct pending *pending = pending_of(0, io->tgid, slot, io->comm);

		if (pending) {
			pending->n[0] += moved;
			pending->n[1] += device_ns;
		}
	}
	mine = allowance();
	if (mine) {
		if (io->of_interest || allowed(mine, now)) {
			struct record *record = reserve(ONLY_KIND, sizeof(*record), now, io->tid);

			if (record) {
				record->begin = io->begin;
				record->issued = io->issued;
				record->sector = io->sector;
				record->bytes = io->done;
				record->tgid = io->tgid;
				record->disk = slot;
				record->op = io->op;
				record->sync = io->sync;
				record->issuer = io->issuer;
				record->issuer_tgid = io->issuer_tgid;
				__builtin_memcpy(record->comm, io->comm, sizeof(record->comm));
				submit(record);
			}
		} else {
			mine->summed++;
		}
	}
	io->begin = 0;
	return 0;
}
