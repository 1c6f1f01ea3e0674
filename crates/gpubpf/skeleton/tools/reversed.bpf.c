// The blocks of each kernel from the last to the first, where it steals work: gpuwhy probe run --steal KERNEL --object …
#include "gpuwhy_probe.h"

SEC("gpu/order/*")
__u64 reversed(struct gpu_order *order)
{
	return order->blocks - 1 - order->turn;
}
