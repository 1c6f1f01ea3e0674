// Asks for what comes next, where launches go through managed memory by equal distances, forwards or backwards
// (gpuwhy probe policy): columns, every n-th tile, layers from the last to the first. Where the distance between
// launches was the same three times, the next places at that distance are prefetched.
//
// What fools it: kernels that are given the same pointer each time; two walks through one allocation at once.
#include "gpuwhy_probe.h"

#define PLACES 3             /* so many places ahead */
#define REGION (2ULL << 20)  /* so much of each: the block in which the driver moves managed memory */

struct stride {
	__u64 allocation;
	__u64 offset; /* of the last launch */
	__u64 step;   /* to it from the one before; as large as a negative number where it went backwards */
	__u64 run;    /* how often the step was the same */
};

/* By the allocation's number; one that comes 256 later takes the place. */
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct stride);
} strides SEC(".maps");

static __attribute__((always_inline)) inline void came(__u64 allocation, __u64 base, __u64 bytes, __u64 offset)
{
	__u32 key = allocation & 255;
	struct stride *stride = bpf_map_lookup_elem(&strides, &key);
	if (!stride || !allocation)
		return;
	__u64 step = offset - stride->offset, other = stride->allocation ^ allocation;
	if (!(other | step))
		return;
	stride->offset = offset;
	if (other | (step ^ stride->step)) {
		stride->allocation = allocation;
		stride->step = step;
		stride->run = 0;
		return;
	}
	stride->run++;
	if (stride->run < 2)
		return;
	__u64 place = offset;
#pragma clang loop unroll(full)
	for (int ahead = 0; ahead < PLACES; ahead++) {
		place += step;
		/* Before the beginning is as far as behind the end. */
		if (place >= bytes)
			break;
		gpu_ask_prefetch(base + place, gpu_smaller(REGION, bytes - place));
	}
}

SEC("gpu/policy/launch")
int stride(struct gpu_policy_launch *launch)
{
#pragma clang loop unroll(full)
	for (int n = 0; n < 2; n++) {
		struct gpu_policy_pointer *at = &launch->pointer[n];
		came(at->allocation, at->base, at->bytes, at->offset);
	}
	return 0;
}
