// Counts the threads that enter and leave a kernel, and its accesses by their bytes, as sums of each block, or where
// PLACE says.
#include "gpuwhy_probe.h"

#ifndef PLACE
#define PLACE GPU_BLOCK_ARRAY
#endif

struct {
	__uint(type, PLACE);
	__uint(max_entries, 100);
	__type(key, __u32);
	__type(value, __u64);
} sizes SEC(".maps");

struct {
	__uint(type, PLACE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64[2]);
} threads SEC(".maps");

static inline __attribute__((always_inline)) void add(void *map, __u32 key, __u64 number)
{
	__u64 *sum = bpf_map_lookup_elem(map, &key);

	if (sum)
		__sync_fetch_and_add(sum, number);
}

SEC("kprobe/*")
int comes(void *ctx)
{
	add(&threads, 0, 1);
	return 0;
}

SEC("kretprobe/*")
int goes(void *ctx)
{
	add(&threads, 1, 1 + gpu_lane_id());
	return 0;
}

SEC("kprobe/__memcapture")
int accesses(struct gpu_access *ctx)
{
	add(&sizes, ctx->bytes < 100 ? ctx->bytes : 99, 1);
	return 0;
}
