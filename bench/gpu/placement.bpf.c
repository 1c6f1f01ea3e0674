// Counts the accesses of a kernel by lane, in a map that lies where its type (PLACE) says.
#include "gpuwhy_probe.h"

struct {
	__uint(type, PLACE);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __u64);
} accesses SEC(".maps");

SEC("kprobe/__memcapture")
int counts_accesses(struct gpu_access *ctx)
{
	__u32 lane = gpu_lane_id() & 31;
	__u64 *count = bpf_map_lookup_elem(&accesses, &lane);

	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
