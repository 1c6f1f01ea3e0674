/* A record for each block of each launch, into rings of ENTRIES records. */
#include "gpuwhy_probe.h"

struct block {
	__u64 number, launch;
};

struct {
	__uint(type, GPU_RING);
	__uint(max_entries, ENTRIES);
	__type(value, struct block);
} blocks SEC(".maps");

SEC("kprobe/*")
int began(struct gpu_site *site)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	if (x | y | z)
		return 0;
	struct block block = { .launch = gpu_grid_id() };
	gpu_block_idx(&block.number, &y, &z);
	bpf_perf_event_output(site, &blocks, 0, &block, sizeof(block));
	return 0;
}
