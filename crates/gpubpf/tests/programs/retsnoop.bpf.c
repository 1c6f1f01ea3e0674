// Sends a record when a thread leaves the kernel; the record is put together by a function.
#include "gpuwhy_probe.h"

struct event {
	__u64 block[3];
	__u64 thread[3];
	__u64 time;
	__u32 sm, lane;
};

struct {
	__uint(type, GPU_RING);
	__uint(max_entries, 128);
	__type(key, __u32);
	__type(value, struct event);
} events SEC(".maps");

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64[2]);
} totals SEC(".maps");

static const __u32 weights[8] = { 1, 2, 3, 5, 7, 11, 13, 17 };

__attribute__((noinline)) static __u64 weigh(__u64 lane)
{
	return weights[lane & 7] * lane;
}

__attribute__((noinline)) static void fill(struct event *event)
{
	gpu_block_idx(&event->block[0], &event->block[1], &event->block[2]);
	gpu_thread_idx(&event->thread[0], &event->thread[1], &event->thread[2]);
	event->time = gpu_globaltimer();
	event->sm = gpu_sm_id();
	event->lane = gpu_lane_id();
}

SEC("kretprobe/*")
int retsnoop(void *ctx)
{
	struct event event;
	fill(&event);
	bpf_perf_event_output(ctx, &events, 0, &event, sizeof(event));
	__u32 key = event.lane & 3;
	__u64 *total = bpf_map_lookup_elem(&totals, &key);
	if (total) {
		__sync_fetch_and_add(&total[0], 1);
		__sync_fetch_and_add(&total[1], weigh(event.lane));
	}
	return 0;
}

// For the host: it calls a helper that a GPU lacks, which must not keep the others from compiling.
SEC("uprobe/launch")
int on_the_host(void *ctx)
{
	static __u64 (*ktime)(void) = (void *)5;
	return ktime() & 1;
}
