/* SPDX-License-Identifier: Apache-2.0 */
/* Hash maps: counting by key, whole keys, and what update and delete say. */
#include "gpuwhy_probe.h"

struct {
	__uint(type, GPU_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} counts SEC(".maps");

/* More keys come than it has room for. */
struct {
	__uint(type, GPU_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u32);
} narrow SEC(".maps");

struct where {
	__u32 x, y, z;
};
struct record {
	__u64 first;
	__u64 second;
};
struct {
	__uint(type, GPU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct where);
	__type(value, struct record);
} places SEC(".maps");

struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} said SEC(".maps");

static __attribute__((always_inline)) void say(__u32 key, long value)
{
	__u64 word = value;
	bpf_map_update_elem(&said, &key, &word, BPF_ANY);
}

SEC("kprobe/count")
int count(struct gpu_site *site)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	__u64 key = (x & 31) * 1000000007, zero = 0;
	__u64 *value = bpf_map_lookup_elem(&counts, &key);
	if (!value) {
		bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&counts, &key);
	}
	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("kprobe/crowd")
int crowd(struct gpu_site *site)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	__u32 key = x, value = x * 2 + 1;
	say(0, bpf_map_update_elem(&narrow, &key, &value, BPF_ANY));
	return 0;
}

SEC("kprobe/rules")
int rules(struct gpu_site *site)
{
	__u64 x, y, z;
	gpu_thread_idx(&x, &y, &z);
	struct where key = { x, y, 7 };
	struct record value = { x * 3, 5 };
	say(0, bpf_map_update_elem(&places, &key, &value, BPF_EXIST));
	say(1, bpf_map_update_elem(&places, &key, &value, BPF_NOEXIST));
	say(2, bpf_map_update_elem(&places, &key, &value, BPF_NOEXIST));
	value.second = 6;
	say(3, bpf_map_update_elem(&places, &key, &value, BPF_EXIST));
	struct record *found = bpf_map_lookup_elem(&places, &key);
	say(4, found ? found->first + found->second : -1);
	if (x & 1) {
		say(5, bpf_map_delete_elem(&places, &key));
		say(6, bpf_map_delete_elem(&places, &key));
		say(7, bpf_map_lookup_elem(&places, &key) ? 1 : 2);
	}
	return 0;
}
