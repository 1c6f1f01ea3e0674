// Counts loads of global memory and their bytes, by SM.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[2]);
} loads SEC(".maps");

SEC("gpu/insn/loads")
int load_count(struct gpu_access *access)
{
	__u32 key = 0;
	__u64 *sums = bpf_map_lookup_elem(&loads, &key);
	if (sums) {
		__sync_fetch_and_add(&sums[0], 1);
		__sync_fetch_and_add(&sums[1], access->bytes);
	}
	return 0;
}
