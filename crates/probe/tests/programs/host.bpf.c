// Counts threads twice: in memory of the device, and in memory of the host.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} device SEC(".maps");

struct {
	__uint(type, GPU_HOST_ARRAY);
	__uint(max_entries, 600);
	__type(key, __u32);
	__type(value, __u64);
} host SEC(".maps");

SEC("kprobe/*")
int comes(void *ctx)
{
	__u32 first = 1, last = 599;
	__u64 *here = bpf_map_lookup_elem(&device, &first);
	__u64 *there = bpf_map_lookup_elem(&host, &last);

	if (here && there) {
		__sync_fetch_and_add(here, 1);
		__sync_fetch_and_add(there, 1);
	}
	return 0;
}
