// A program of the device: counts its threads under the first key, and under the last one what it finds more
// than a million times there.
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_KERNEL_SHARED_ARRAY);
	__uint(max_entries, 700);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} own SEC(".maps");

SEC("kprobe/*")
int comes(void *ctx)
{
	__u32 first = 0, last = 699;
	__u64 *n = bpf_map_lookup_elem(&counts, &first);
	__u64 *found = bpf_map_lookup_elem(&counts, &last);
	__u64 *mine = bpf_map_lookup_elem(&own, &first);

	if (n && found && mine) {
		if (*n >= 1000000)
			__sync_fetch_and_add(found, 1);
		__sync_fetch_and_add(n, 1);
		__sync_fetch_and_add(mine, 1);
	}
	return 0;
}
