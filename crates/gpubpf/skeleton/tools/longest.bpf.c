// The longest blocks first, where a kernel steals work (gpuwhy probe run --steal KERNEL --object …), so that none of them
// is begun when the others end. How long a block took is what its first thread took in the first launch that had it, to
// a factor of two; the first launch is in order. For one kernel: name it in the three sections, as in gpu/order/gemm.
#include "gpuwhy_probe.h"

#define MOST 4096 /* blocks that are known, a power of two; others come last */
#define SHORTEST 8 /* all below 2^8 ns are one class, and all above 2^27 */
#define CLASSES 20

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, MOST);
	__type(key, __u32);
	__type(value, __u64);
} begun SEC(".maps"), seen SEC(".maps");

/* How many blocks took 2^(SHORTEST + class) ns and more, and which. */
struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, CLASSES);
	__type(key, __u32);
	__type(value, __u64);
} blocks SEC(".maps");

struct {
	__uint(type, GPU_ARRAY);
	__uint(max_entries, CLASSES *MOST);
	__type(key, __u32);
	__type(value, __u32);
} members SEC(".maps");

/* The block's number, if this is its first thread; MOST for others. */
static __u32 first_of_block(void)
{
	__u64 x, y, z, width, height, depth;
	gpu_thread_idx(&x, &y, &z);
	if (x | y | z)
		return MOST;
	gpu_block_idx(&x, &y, &z);
	gpu_grid_dim(&width, &height, &depth);
	x += width * (y + height * z);
	return x < MOST ? x : MOST;
}

SEC("kprobe/*")
int begin(void *ctx)
{
	__u32 block = first_of_block();
	if (block >= MOST)
		return 0;
	__u64 *at = bpf_map_lookup_elem(&begun, &block);
	if (at)
		*at = gpu_globaltimer();
	return 0;
}

SEC("kretprobe/*")
int end(void *ctx)
{
	__u32 block = first_of_block();
	if (block >= MOST)
		return 0;
	__u64 *before = bpf_map_lookup_elem(&seen, &block);
	__u64 *at = bpf_map_lookup_elem(&begun, &block);
	if (!before || !at || __sync_fetch_and_add(before, 1))
		return 0;
	__u64 took = (gpu_globaltimer() - *at) >> SHORTEST;
	__u32 class = 0;
	for (int bit = 5; bit >= 0; bit--) {
		if (took >> (1 << bit)) {
			took >>= 1 << bit;
			class += 1 << bit;
		}
	}
	if (class >= CLASSES)
		class = CLASSES - 1;
	__u64 *many = bpf_map_lookup_elem(&blocks, &class);
	if (!many)
		return 0;
	__u64 place = __sync_fetch_and_add(many, 1);
	if (place >= MOST)
		return 0;
	__u32 key = class * MOST + place;
	__u32 *member = bpf_map_lookup_elem(&members, &key);
	if (member)
		*member = block;
	return 0;
}

SEC("gpu/order/*")
__u64 longest(struct gpu_order *order)
{
	__u64 turn = order->turn;
	for (int class = CLASSES - 1; class >= 0; class--) {
		__u32 key = class;
		__u64 *many = bpf_map_lookup_elem(&blocks, &key);
		if (!many)
			break;
		__u64 here = *many;
		if (turn < here) {
			key = class * MOST + (turn & (MOST - 1));
			__u32 *member = bpf_map_lookup_elem(&members, &key);
			return member ? *member : order->turn;
		}
		turn -= here;
	}
	return order->turn;
}
