// A policy that asks for what it may not have: memory that the program does not have, or has given back, or that is
// the device's alone; a range that is longer than its allocation; advice that does not exist. And once for what it
// may.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} only SEC(".maps");

SEC("gpu/policy/alloc")
int allocated(struct gpu_policy_alloc *memory)
{
	__u32 key = 0;
	__u64 *at = bpf_map_lookup_elem(&only, &key);
	if (at && memory->kind == GPU_DEVICE_MEMORY)
		*at = memory->address;
	return 0;
}

SEC("gpu/policy/launch")
int launched(struct gpu_policy_launch *launch)
{
	__u32 key = 0;
	struct gpu_policy_pointer *to = &launch->pointer[0];
	__u64 *at = bpf_map_lookup_elem(&only, &key);
	if (!at || !to->allocation)
		return 0;
	gpu_ask_prefetch(to->base + to->bytes, 4096);
	gpu_ask_prefetch(4096, 4096);
	gpu_ask_prefetch(to->base, to->bytes + 1);
	gpu_ask_prefetch(*at, 4096);
	gpu_ask_advise(*at, 4096, GPU_READ_MOSTLY);
	gpu_ask_advise(to->base, to->bytes, 99);
	gpu_ask_prefetch(to->base, 0);
	gpu_ask_prefetch(to->base, to->bytes);
	gpu_ask_advise(to->base, to->bytes, GPU_PREFER_HOST);
	return 0;
}
