// Counts the warps that enter a kernel, by SM.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} warps SEC(".maps");

SEC("kprobe/*")
int entry_count(void *ctx)
{
	__u32 key = 0;
	if (gpu_lane_id() != 0)
		return 0;
	__u64 *count = bpf_map_lookup_elem(&warps, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
