// Programs that a GPU cannot run, each for one reason.
#include "gpuwhy_probe.h"

struct {
	__uint(type, 1); /* the host's hash */
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} host_hash SEC(".maps");

struct {
	__uint(type, GPU_RING);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} ring SEC(".maps");

__u64 counter;

extern int elsewhere(void) __attribute__((weak));

SEC("kprobe/host_map")
int host_map(void *ctx)
{
	__u32 key = 0;
	return bpf_map_lookup_elem(&host_hash, &key) != 0;
}

SEC("kprobe/variable")
int variable(void *ctx)
{
	counter += 1;
	return 0;
}

SEC("kprobe/printing")
int printing(void *ctx)
{
	static long (*print)(const char *text, __u32 size) = (void *)6;
	char text[8] = "hello";
	return print(text, sizeof(text));
}

SEC("kprobe/long_record")
int long_record(void *ctx)
{
	__u64 record[2] = { 1, 2 };
	return bpf_perf_event_output(ctx, &ring, 0, record, sizeof(record));
}

SEC("kprobe/flags")
int flags(void *ctx)
{
	__u32 key = 0;
	__u64 value = 1;
	return bpf_map_update_elem(&ring, &key, &value, BPF_ANY);
}

__attribute__((noinline)) static __u64 factorial(__u64 n)
{
	return n < 2 ? 1 : n * factorial(n - 1) + 1;
}

SEC("kprobe/recursive")
int recursive(__u64 *ctx)
{
	return factorial(gpu_lane_id()) ^ factorial(gpu_sm_id());
}
