// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#define PROBE PROBE_INTERRUPTS
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

		cpu->softirq_ns[i] += total > inside ? total - inside : 0;
	}
	cpu->softirq_start = 0;
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	if (cpu->hardirq_depth++ == 0)
		cpu->hardirq_start = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || !cpu->hardirq_depth)
		return 0;
	if (--cpu->hardirq_depth == 0)
		cpu->hardirq_ns += bpf_ktime_get_ns() - cpu->hardirq_start;
	return 0;
}
