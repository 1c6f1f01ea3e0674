// A policy that asks, before the first call of the program `managed` and of no other, for its kernel to be delayed by a
// second, and for another priority of all of its streams, and of the second one.
#include "gpuwhy_probe.h"

SEC("gpu/policy/tick")
int begin(struct gpu_policy_tick *tick)
{
	if (tick->number || tick->program != gpu_name("managed"))
		return 0;
	gpu_ask_delay(gpu_name("add"), 1000000);
	gpu_ask_priority(0, -1);
	gpu_ask_priority(2, -4);
	return 0;
}
