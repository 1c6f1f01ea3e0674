// How long loads of global memory take, as a histogram by powers of two of cycles, and how much of a thread's time in all.
//
// A clock before each load and one behind it, which waits for what was loaded: without that, the second clock would be read
// while the load is under way. So the kernel is slowed down where it would have gone on; run it in some blocks or warps alone
// (--one-block-in, --one-warp-in), and compare loads with loads, not with the kernel as it is.
#include "gpuwhy_probe.h"

// Key n counts the loads that took at least 2^n cycles and less than 2^(n+1).
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} took SEC(".maps");

// 0: cycles, 1: loads.
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} stalls SEC(".maps");

struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} begins SEC(".maps");

SEC("gpu/insn/loads")
int begins_to_load(struct gpu_access *access)
{
	__u32 own = 0;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (begin)
		*begin = gpu_clock();
	return 0;
}

SEC("gpu/insnret/loads")
int has_loaded(struct gpu_access *access)
{
	// The branch waits for what was loaded, and the clock for the branch.
	if ((__u32)access->loaded == 0x7f4a7c15)
		return 0;
	__u64 now = gpu_clock();
	__u32 own = 0, power = 0, cycles_key = 0, loads_key = 1;
	__u64 *begin = bpf_map_lookup_elem(&begins, &own);
	if (!begin)
		return 0;
	__u64 cycles = now - *begin, rest = cycles;
	// The binary logarithm in six steps, none of which is a branch.
	__u32 over;
	over = (rest >> 32 != 0) << 5, rest >>= over, power |= over;
	over = (rest >> 16 != 0) << 4, rest >>= over, power |= over;
	over = (rest >> 8 != 0) << 3, rest >>= over, power |= over;
	over = (rest >> 4 != 0) << 2, rest >>= over, power |= over;
	over = (rest >> 2 != 0) << 1, rest >>= over, power |= over;
	power |= rest >> 1 != 0;
	power &= 63;
	__u64 *count = bpf_map_lookup_elem(&took, &power);
	__u64 *all = bpf_map_lookup_elem(&stalls, &cycles_key);
	__u64 *loads = bpf_map_lookup_elem(&stalls, &loads_key);
	if (count)
		__sync_fetch_and_add(count, 1);
	if (all)
		__sync_fetch_and_add(all, cycles);
	if (loads)
		__sync_fetch_and_add(loads, 1);
	return 0;
}
