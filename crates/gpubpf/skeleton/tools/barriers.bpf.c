// How long each thread waits at barriers of its block, and for which place.
//
// The warp that waits least is the one that the others wait for.
#include "gpuwhy_probe.h"

struct waits {
	__u64 since; // when it last came to a barrier, ns
	__u64 ns;
	__u64 times;
};

// By thread of the grid.
struct {
	__uint(type, GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waits);
} threads SEC(".maps");

SEC("gpu/insn/barriers")
int came(struct gpu_access *access)
{
	__u32 own = 0;
	struct waits *mine = bpf_map_lookup_elem(&threads, &own);
	if (mine)
		mine->since = gpu_globaltimer();
	return 0;
}

SEC("gpu/insnret/barriers")
int went(struct gpu_access *access)
{
	__u32 own = 0;
	struct waits *mine = bpf_map_lookup_elem(&threads, &own);
	if (mine) {
		mine->ns += gpu_globaltimer() - mine->since;
		mine->times += 1;
	}
	return 0;
}
