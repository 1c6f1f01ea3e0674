// Counts, for every thread, how often it left the kernel.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int threadhist(void *ctx)
{
	__u32 key = 1;
	__u64 *count = bpf_map_lookup_elem(&counts, &key);
	if (count)
		*count += 1;
	return 0;
}
