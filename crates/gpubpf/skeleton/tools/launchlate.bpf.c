// When each launch began on the device, by its number, and how many blocks run over time.
//
// `gpuwhy probe run` reads these maps while the program runs, and finds the call on the host that each launch came from. So it
// tells how late each one began, with any number of them under way. Times of a millisecond and more in which a launch was
// under way and no block ran become spans `launch_latency` of the program in a trace that is recorded around it.
#include "gpuwhy_probe.h"

#define LAUNCHES 8192
#define BINS 8192

struct launch {
	__u64 number; // of the launch, and 1; 0 while it is written
	__u64 site;   // where its kernel begins
	__u64 begin;  // of its first block, ns of the device's clock
};

// The last launches, by their number modulo the entries.
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, LAUNCHES);
	__type(key, __u32);
	__type(value, struct launch);
} gpuwhy_launches SEC(".maps");

// Blocks that began less those that ended, by the time of the device's clock in units of 2^16 ns, modulo the entries.
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, BINS);
	__type(key, __u32);
	__type(value, __u64);
} gpuwhy_running SEC(".maps");

// The place where the last block of each such unit ended: that of the program plus 1 in 24 bits, above them the unit.
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, BINS);
	__type(key, __u32);
	__type(value, __u64);
} gpuwhy_ended SEC(".maps");

static __attribute__((always_inline)) int is_first_thread(void)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	return (x | y | z) == 0;
}

static __attribute__((always_inline)) void count(__u64 now, __u64 by)
{
	__u32 bin = (now >> 16) & (BINS - 1);
	__u64 *running = bpf_map_lookup_elem(&gpuwhy_running, &bin);
	if (running)
		__sync_fetch_and_add(running, by);
}

SEC("kprobe/*")
int began(struct gpu_site *site)
{
	if (!is_first_thread())
		return 0;
	__u64 now = gpu_globaltimer(), x, y, z;
	count(now, 1);
	gpu_block_idx(&x, &y, &z);
	if (x | y | z)
		return 0;
	__u64 number = gpu_grid_id();
	__u32 slot = number & (LAUNCHES - 1);
	struct launch *launch = bpf_map_lookup_elem(&gpuwhy_launches, &slot);
	if (!launch)
		return 0;
	__sync_lock_test_and_set(&launch->number, 0);
	launch->site = site->site;
	launch->begin = now;
	// Whoever sees the number sees the rest.
	__sync_lock_test_and_set(&launch->number, number + 1);
	return 0;
}

SEC("kretprobe/*")
int ended(struct gpu_site *site)
{
	if (!is_first_thread())
		return 0;
	__u64 now = gpu_globaltimer();
	count(now, -1);
	__u32 bin = (now >> 16) & (BINS - 1);
	__u64 *ended = bpf_map_lookup_elem(&gpuwhy_ended, &bin);
	if (ended)
		*ended = now >> 16 << 24 | (site->site + 1);
	return 0;
}
