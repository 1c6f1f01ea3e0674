// How long threads are in a kernel, as a histogram by powers of two of ns.
//
// Lanes of one warp return together unless the compiler lets one of them return by itself, so what differs here differs
// between warps.
#include "gpuwhy_probe.h"

// Key n counts the threads that took at least 2^n ns and less than 2^(n+1).
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} took SEC(".maps");

struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} begins SEC(".maps");

SEC("kprobe/*")
int began(struct gpu_site *site)
{
	__u32 own = 0;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (begin)
		*begin = gpu_globaltimer();
	return 0;
}

SEC("kretprobe/*")
int returned(struct gpu_site *site)
{
	__u32 own = 0, power = 0;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (!begin)
		return 0;
	__u64 ns = gpu_globaltimer() - *begin;
	// The binary logarithm in six steps, none of which is a branch.
	__u32 over;
	over = (ns >> 32 != 0) << 5, ns >>= over, power |= over;
	over = (ns >> 16 != 0) << 4, ns >>= over, power |= over;
	over = (ns >> 8 != 0) << 3, ns >>= over, power |= over;
	over = (ns >> 4 != 0) << 2, ns >>= over, power |= over;
	over = (ns >> 2 != 0) << 1, ns >>= over, power |= over;
	power |= ns >> 1 != 0;
	power &= 63;
	__u64 *count = bpf_map_lookup_elem(&took, &power);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
