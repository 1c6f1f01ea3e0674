// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vec)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	cpu->softirq_start = bpf_ktime_get_ns();
	cpu->softirq_hardirq0 = cpu->hardirq_ns;
	cpu->softirq_vec = vec + 1;
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vec)
{
	struct cpu *cpu = this_cpu();
	__u32 i = vec;

	if (!cpu)
		return 0;
	cpu->softirq_vec = 0;
	/* A copy behind an empty asm, or the verifier forgets the bound when the compiler spills it. */
	asm volatile("" : "+r"(i));
	if (cpu->softirq_start && i < SOFTIRQS) {
		__u64 total = bpf_ktime_get_ns() - cpu->softirq_start;
		__u64 inside = cpu->hardirq_ns - cpu->softirq_hardirq0;

		total = total > inside ? total - inside : 0;
		cpu->softirq_ns[i] += total;
		if (!cpu->slice_softirq_ns)
			__builtin_memset(cpu->slice_vec_ns, 0, sizeof(cpu->slice_vec_ns));
		cpu->slice_softirq_ns += total;
		cpu->slice_vec_ns[i] += total;
	}
	cpu->softirq_start = 0;
	return 0;
}

static __always_inline int enter_hardirq(void)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	if (cpu->hardirq_depth++ == 0)
		cpu->hardirq_start = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int leave_hardirq(void)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || !cpu->hardirq_depth)
		return 0;
	if (--cpu->hardirq_depth == 0) {
		__u64 took = bpf_ktime_get_ns() - cpu->hardirq_start;

		cpu->hardirq_ns += took;
		cpu->slice_hardirq_ns += took;
	}
	return 0;
}

/*
 * Handlers of devices, and the vectors of the local APIC that have no handler but take time and wake
 * threads too. A tracepoint that the kernel lacks is not loaded. Exits are attached first: an entry
 * that is seen without its exit would leave the CPU inside an interrupt for ever.
 */
#define HARDIRQ(entry, exit)                                                                       \
	SEC("tp_btf/" #exit) int exit(void *ctx) { return leave_hardirq(); }                               \
	SEC("tp_btf/" #entry) int entry(void *ctx) { return enter_hardirq(); }

HARDIRQ(irq_handler_entry, irq_handler_exit)
HARDIRQ(local_timer_entry, local_timer_exit)
HARDIRQ(reschedule_entry, reschedule_exit)
HARDIRQ(call_function_entry, call_function_exit)
HARDIRQ(call_function_single_entry, call_function_single_exit)
HARDIRQ(irq_work_entry, irq_work_exit)
HARDIRQ(ipi_entry, ipi_exit)
