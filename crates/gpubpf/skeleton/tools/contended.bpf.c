// Which words many threads change at once: atomic operations of global memory, counted by address.
//
// The memory of a GPU does atomics of one word one after the other. A word with a large share of them is worth a
// sum by warp or by block first.
#include "gpuwhy_probe.h"

// By the address of the cache line of 32 bytes.
struct {
	__uint(type, GPU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} lines SEC(".maps");

// By the place in the kernel: the number that `gpuwhy probe splice --json` lists; the last one holds all further places.
struct {
	__uint(type, GPU_PER_SM_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} places SEC(".maps");

SEC("gpu/insn/atomics")
int changed(struct gpu_access *access)
{
	__u64 line = access->address >> 5, none = 0;
	__u32 place = access->site < 255 ? access->site : 255;
	if (GPU_SPACE(access->kind) > GPU_GLOBAL)
		return 0;
	__u64 *at = bpf_map_lookup_elem(&places, &place);
	if (at)
		__sync_fetch_and_add(at, 1);
	__u64 *count = bpf_map_lookup_elem(&lines, &line);
	if (!count) {
		bpf_map_update_elem(&lines, &line, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&lines, &line);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
