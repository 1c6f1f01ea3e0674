// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A limit on what one CPU tells in a while; what is beyond it is counted as lost. The including probe
 * has defined PROBE, its number. */
#ifndef GPUWHY_BUDGET_H
#define GPUWHY_BUDGET_H

#include "gpuwhy.h"

struct budget {
	__u64 window;
	__u64 begun;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct budget);
} budgets SEC(".maps");

static __always_inline void lose(void)
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		__sync_fetch_and_add(&cpu->dropped[PROBE], 1);
}

/* Whether one more of at most `most` in `window` ns may begin on this CPU now. */
static __always_inline bool affordable(__u64 now, __u64 window, __u64 most)
{
	__u32 zero = 0;
	struct budget *b = bpf_map_lookup_elem(&budgets, &zero);

	if (!b)
		return true;
	if (now - b->window > window) {
		b->window = now;
		b->begun = 0;
	}
	return b->begun++ < most;
}

#endif
