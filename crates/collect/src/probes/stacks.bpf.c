// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Stacks of whatever runs, from a timer's interrupt. Attached during incidents only.
 */
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define KERNEL_DEPTH 16
#define USER_DEPTH 32

struct stack_record {
	struct head head;     /* tid: the thread that ran */
	__u32 tgid;
	__u32 pad;
	__s32 kernel_bytes;   /* of the stack that follows; negative if it could not be walked */
	__s32 user_bytes;
	char comm[TASK_COMM_LEN];
	__u64 kernel[KERNEL_DEPTH];
	__u64 user[USER_DEPTH];
};

SHARED(stack_record);

SEC("perf_event")
int sample(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct stack_record *r;

	if (!(__u32)id)
		return 0; /* idle */
	r = reserve(ONLY_KIND, sizeof(*r), bpf_ktime_get_ns(), (__u32)id);
	if (!r)
		return 0;
	r->tgid = id >> 32;
	r->pad = 0;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	r->kernel_bytes = bpf_get_stack(ctx, r->kernel, sizeof(r->kernel), 0);
	r->user_bytes = bpf_get_stack(ctx, r->user, sizeof(r->user), BPF_F_USER_STACK);
	submit(r);
	return 0;
}
