// Every STRIDE-th block first, then those behind them, where a kernel steals work: blocks that run at once are far from
// each other. gpuwhy probe run --steal KERNEL --object …
#include "gpuwhy_probe.h"

#define STRIDE 8

SEC("gpu/order/*")
__u64 strided(struct gpu_order *order)
{
	__u64 rounds = (order->blocks + STRIDE - 1) / STRIDE;
	// Beyond the last block, the next free one is taken.
	return order->turn % rounds * STRIDE + order->turn / rounds;
}
