// A device probe: eBPF that runs inside GPU kernels.
//
//   make            compiles it
//   make check      tells the verifier's verdict and what it costs at most
//
// Where it runs is said by SEC(...); gpuwhy_probe.h lists the sections, maps and helpers that there are.
#include "gpuwhy_probe.h"

// How many warps entered each kernel and how many bytes of global memory were asked for, by SM, so that
// the SMs do not wait for one counter.
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __attribute__((always_inline)) int add(__u32 key, __u64 by)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &key);
	if (count)
		__sync_fetch_and_add(count, by); // other warps of the SM count too
	return 0;
}

SEC("kprobe/*")
int warps(struct gpu_site *site)
{
	return gpu_lane_id() == 0 ? add(0, 1) : 0;
}

SEC("gpu/insn/loads")
int loaded(struct gpu_access *access)
{
	return add(1, access->bytes);
}
