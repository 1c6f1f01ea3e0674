// Which lanes and threads do more of a kernel's work than others: loads and stores of global memory, counted by lane and
// by thread.
//
// A warp waits for its busiest lane. Where lanes differ, or every eighth thread does more, the data is shared out unevenly; lanes
// that wait for the others are not later at the kernel's end, since the warp goes on as one. A bank conflict shows
// in no lane: it delays the whole warp.
#include "gpuwhy_probe.h"

struct work {
	__u64 accesses;
	__u64 bytes;
};

// By lane, 0 to 31.
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, struct work);
} lanes SEC(".maps");

// By thread of the grid.
struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} threads SEC(".maps");

SEC("gpu/insn/accesses")
int accessed(struct gpu_access *access)
{
	__u32 lane = gpu_lane_id() & 31, own = 0;
	if (GPU_SPACE(access->kind) > GPU_GLOBAL)
		return 0;
	struct work *of_lane = bpf_map_lookup_elem(&lanes, &lane);
	if (of_lane) {
		__sync_fetch_and_add(&of_lane->accesses, 1);
		__sync_fetch_and_add(&of_lane->bytes, access->bytes);
	}
	struct work *of_thread = bpf_map_lookup_elem(&threads, &own);
	if (of_thread) {
		of_thread->accesses += 1;
		of_thread->bytes += access->bytes;
	}
	return 0;
}
