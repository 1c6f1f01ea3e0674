// How many blocks run, over time: the tail of a launch, in which few blocks still run and the others have ended.
//
// A launch ends with its last block. Where one block has more to do than the others, or the last ones begin late, most of
// the GPU waits for it. `gpuwhy probe run` reads this map while the program runs: tails of a millisecond and more become spans
// `kernel_imbalance` of the program in a trace that is recorded around it.
#include "gpuwhy_probe.h"

// Blocks that began less those that ended, by the time of the device's clock in units of 2^16 ns, modulo the entries.
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u64);
} gpuwhy_running SEC(".maps");

// The place where the last block of each such unit ended: that of the program plus 1 in 24 bits, above them the unit.
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u64);
} gpuwhy_ended SEC(".maps");

static __attribute__((always_inline)) __u64 count(__u64 by)
{
	__u64 unit = gpu_globaltimer() >> 16;
	__u32 bin = unit & 8191;
	__u64 *running = bpf_map_lookup_elem(&gpuwhy_running, &bin);
	if (running)
		__sync_fetch_and_add(running, by);
	return unit;
}

static __attribute__((always_inline)) int is_first_thread(void)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	return (x | y | z) == 0;
}

SEC("kprobe/*")
int began(struct gpu_site *site)
{
	if (is_first_thread())
		count(1);
	return 0;
}

SEC("kretprobe/*")
int ended(struct gpu_site *site)
{
	if (!is_first_thread())
		return 0;
	__u64 unit = count(-1);
	__u32 bin = unit & 8191;
	__u64 *ended = bpf_map_lookup_elem(&gpuwhy_ended, &bin);
	if (ended)
		*ended = unit << 24 | (site->site + 1);
	return 0;
}
