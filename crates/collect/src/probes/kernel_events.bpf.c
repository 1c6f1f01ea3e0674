// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Tracepoints of any kind, with the bytes of their fields as tracefs describes them.
 *
 * One program is attached to many tracepoints; its cookie says which one called it.
 */
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct event_head {
	struct head head; /* tid: the thread that ran */
	__u32 tgid;
	__u32 event;      /* the number that user space gave the tracepoint */
	char comm[TASK_COMM_LEN];
};

SHARED(event_head);

/* Bytes of fields that are copied of a tracepoint: what is known to be short, and what may be long. */
#define SHORT 104
#define LONG 456
/* All tracepoints begin with fields that the tracer keeps for itself; here the kernel holds an address. */
#define COMMON 8

#define COPIES(program, length)                                                   \
	SEC("tracepoint")                                                         \
	int program(void *ctx)                                                    \
	{                                                                         \
		struct {                                                          \
			struct event_head event;                                  \
			__u8 fields[length];                                      \
		} *r;                                                             \
		__u64 id = bpf_get_current_pid_tgid();                            \
                                                                                  \
		r = reserve(ONLY_KIND, sizeof(*r), bpf_ktime_get_ns(), (__u32)id); \
		if (!r)                                                           \
			return 0;                                                 \
		r->event.tgid = id >> 32;                                         \
		r->event.event = bpf_get_attach_cookie(ctx);                      \
		bpf_get_current_comm(r->event.comm, sizeof(r->event.comm));       \
		/* Behind a short record lies what the CPU traced before: nobody reads it. */ \
		bpf_probe_read_kernel(r->fields, sizeof(r->fields), ctx + COMMON); \
		submit(r);                                                        \
		return 0;                                                         \
	}

COPIES(copies_short, SHORT)
COPIES(copies_long, LONG)
