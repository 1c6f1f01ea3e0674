// When each block ran, and on which SM: one record for each block, from its first thread.
//
// Blocks that begin late waited for others to end; an SM whose last block ends long after those of the others is the tail
// of the launch.
#include "gpuwhy_probe.h"

struct block {
	__u64 x, y, z;
	__u64 sm;
	__u64 begin, end; // ns of the device's clock
};

struct {
	__uint(type, GPU_RING);
	__uint(max_entries, 4096);
	__type(value, struct block);
} blocks SEC(".maps");

// When each thread began.
struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} begins SEC(".maps");

static __attribute__((always_inline)) int is_first(void)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	return (x | y | z) == 0;
}

SEC("kprobe/*")
int began(struct gpu_site *site)
{
	__u32 own = 0;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (begin && is_first())
		*begin = gpu_globaltimer();
	return 0;
}

SEC("kretprobe/*")
int ended(struct gpu_site *site)
{
	__u32 own = 0;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (!begin || !is_first())
		return 0;
	struct block record = { .sm = gpu_sm_id(), .begin = *begin, .end = gpu_globaltimer() };
	gpu_block_idx(&record.x, &record.y, &record.z);
	bpf_perf_event_output(site, &blocks, 0, &record, sizeof(record));
	return 0;
}
