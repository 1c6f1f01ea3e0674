// Asks for what comes next, where launches walk through managed memory from its beginning to its end (gpuwhy probe
// policy): adjacency blocks of a graph, segments of an index, batches of a data set. A launch has its place by a
// parameter that points into the memory; where three launches of a row came forward, what lies behind the third is
// prefetched.
//
// What fools it: kernels that are given the same pointer each time and find their own place; walks in steps of more
// than 8 MiB.
#include "gpuwhy_probe.h"

#define AHEAD (8ULL << 20) /* so many bytes behind what a launch works on */
#define FAR 23             /* a step of more than 2^23 bytes is no walk */

struct walk {
	__u64 allocation;
	__u64 offset; /* of the last launch */
	__u64 run;    /* launches that came forward, one after the other */
	__u64 asked;  /* what was asked for ends here */
};

/* By the allocation's number; one that comes 256 later takes the place. */
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct walk);
} walks SEC(".maps");

static __attribute__((always_inline)) inline void walked(__u64 allocation, __u64 base, __u64 bytes, __u64 offset)
{
	__u32 key = allocation & 255;
	struct walk *walk = bpf_map_lookup_elem(&walks, &key);
	if (!walk || !allocation)
		return;
	__u64 step = offset - walk->offset, other = walk->allocation ^ allocation;
	if (!(other | step))
		return;
	walk->offset = offset;
	/* Backwards is further than any step. */
	if (other | (step - 1) >> FAR) {
		walk->allocation = allocation;
		walk->run = 0;
		walk->asked = 0;
		return;
	}
	walk->run++;
	if (walk->run < 2)
		return;
	/* A launch works on as much as it came forward. */
	__u64 from = gpu_larger(offset + step, walk->asked), to = gpu_smaller(offset + step + AHEAD, bytes);
	__u64 more = (to - from) & -gpu_below(from, to);
	gpu_ask_prefetch(base + from, more);
	walk->asked = gpu_larger(to, walk->asked);
}

SEC("gpu/policy/launch")
int sequential(struct gpu_policy_launch *launch)
{
#pragma clang loop unroll(full)
	for (int n = 0; n < 4; n++) {
		struct gpu_policy_pointer *at = &launch->pointer[n];
		walked(at->allocation, at->base, at->bytes, at->offset);
	}
	return 0;
}
