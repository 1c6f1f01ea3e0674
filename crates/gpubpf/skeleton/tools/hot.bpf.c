// Keeps what is accessed most on the device, where managed memory is larger than it (gpuwhy probe policy): the pages
// of a cache of keys and values that each step reads, the upper lists of an index, embeddings of common words. A
// program in every kernel counts the accesses of each region of 2 MiB. Ten times a second, regions with more than one
// and a half times the mean of those that were accessed since are advised to prefer the device and prefetched; those
// that no longer are lose the advice.
//
// What fools it: memory beyond REGIONS regions shares their counts. The counting costs an atomic operation an access;
// --one-warp-in 16 counts a part.
#include "gpuwhy_probe.h"

#define REGIONS 256 /* a power of two */
#define BITS 21     /* of an address within a region */

/* Accesses, by the lower bits of the region's number; policies see what the kernels have counted. */
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, REGIONS);
	__type(key, __u32);
	__type(value, __u64);
} touched SEC(".maps");

/* The policy's own: what there was at the last tick, and where the region lies. */
struct region {
	__u64 seen;
	__u64 at;
	__u64 bytes; /* 0: there is no managed memory */
	__u64 preferred;
};
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, REGIONS);
	__type(key, __u32);
	__type(value, struct region);
} regions SEC(".maps");

SEC("gpu/insn/accesses")
int touch(struct gpu_access *access)
{
	__u32 key = access->address >> BITS & (REGIONS - 1);
	if (GPU_SPACE(access->kind) > GPU_GLOBAL)
		return 0;
	__u64 *count = bpf_map_lookup_elem(&touched, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

/* Which regions an allocation has. There is no branch in the loop, since each one would double the paths to be verified. */
SEC("gpu/policy/alloc")
int allocated(struct gpu_policy_alloc *memory)
{
	__u64 end = memory->address + memory->bytes, there = memory->freed - 1;
	if (memory->kind != GPU_MANAGED_MEMORY)
		return 0;
	for (__u64 n = 0; n < REGIONS; n++) {
		gpu_keep(n);
		__u64 at = ((memory->address >> BITS) + n) << BITS;
		__u32 key = at >> BITS & (REGIONS - 1);
		struct region *region = bpf_map_lookup_elem(&regions, &key);
		if (!region)
			return 0;
		__u64 from = gpu_larger(at, memory->address), to = gpu_smaller(at + (1 << BITS), end);
		__u64 is = -gpu_below(at, end);
		region->at = (from & is) | (region->at & ~is);
		region->bytes = ((to - from) & is & there) | (region->bytes & ~is);
		region->preferred &= ~is;
	}
	return 0;
}

SEC("gpu/policy/tick")
int hot(struct gpu_policy_tick *tick)
{
	__u64 all = 0, used = 0;
	for (__u64 n = 0; n < REGIONS; n++) {
		__u32 key = n;
		gpu_keep(n);
		__u64 *count = bpf_map_lookup_elem(&touched, &key);
		struct region *region = bpf_map_lookup_elem(&regions, &key);
		if (!count || !region)
			return 0;
		__u64 more = *count - region->seen;
		all += more;
		used += gpu_below(0, more);
	}
	if (!all)
		return 0;
	for (__u64 n = 0; n < REGIONS; n++) {
		__u32 key = n;
		gpu_keep(n);
		__u64 *count = bpf_map_lookup_elem(&touched, &key);
		struct region *region = bpf_map_lookup_elem(&regions, &key);
		if (!count || !region)
			return 0;
		__u64 more = *count - region->seen, is = -gpu_below(3 * all, 2 * more * used);
		region->seen = *count;
		gpu_ask_advise(region->at, region->bytes & is & ~region->preferred, GPU_PREFER_DEVICE);
		gpu_ask_advise(region->at, region->bytes & ~is & region->preferred, GPU_NO_PREFERENCE);
		gpu_ask_prefetch(region->at, region->bytes & is);
		region->preferred = is;
	}
	return 0;
}
