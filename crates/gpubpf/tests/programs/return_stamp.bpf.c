// Sends when and where a warp's first lane leaves the kernel.
#include "gpuwhy_probe.h"

struct event {
	__u64 time;
	__u64 block[3];
	__u32 sm, warp;
};

struct {
	__uint(type, GPU_RING);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct event);
} events SEC(".maps");

SEC("kretprobe/*")
int return_stamp(void *ctx)
{
	struct event event;
	if (gpu_lane_id() != 0)
		return 0;
	event.time = gpu_globaltimer();
	gpu_block_idx(&event.block[0], &event.block[1], &event.block[2]);
	event.sm = gpu_sm_id();
	event.warp = gpu_warp_id();
	bpf_perf_event_output(ctx, &events, 0, &event, sizeof(event));
	return 0;
}
