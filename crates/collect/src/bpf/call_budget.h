// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A limit on how many calls one CPU may record in a window of time; calls beyond it are counted as
 * dropped. */
#ifndef GPUWHY_CALL_BUDGET_H
#define GPUWHY_CALL_BUDGET_H

#include "gpuwhy.h"

#define WINDOW_NS 10000000ULL

struct call_budget {
	__u64 window; /* when it began */
	__u64 calls;  /* recorded in it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct call_budget);
} call_budgets SEC(".maps");

/* Whether one more call, of at most `most` in a window, may be recorded on this CPU now. */
static __always_inline bool within_budget(__u64 now, __u64 most)
{
	__u32 zero = 0;
	struct call_budget *b = bpf_map_lookup_elem(&call_budgets, &zero);

	if (!b)
		return true;
	if (now - b->window > WINDOW_NS) {
		b->window = now;
		b->calls = 0;
	}
	return b->calls++ < most;
}

#endif
