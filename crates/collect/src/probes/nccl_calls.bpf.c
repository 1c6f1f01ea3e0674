// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Calls of NCCL's exported functions: entry and return of the outermost one on a thread.
 *
 * The meaning of the parameters is not known here: the first seven go to user space as they are. Only
 * memory that must be read while the call lasts is read here, and the cookie says where that is.
 */
#include <asm/ptrace.h>
#include "gpuwhy.h"
#include "call_budget.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ARGS 7
#define MADE 16     /* communicators of one ncclCommInitAll that are recorded */
#define ID_WORDS 16 /* ncclUniqueId has 128 bytes */

enum kind {
	KIND_CALL,
	KIND_MAKE,
};

SHARED_ENUM(kind);

struct call_record {
	struct head head;  /* ts: when it returned */
	__u64 from;        /* when it was called */
	__u32 tgid;
	__u32 function;
	__s32 result;      /* ncclResult_t */
	__u32 pad;
	__u64 args[ARGS];
};

/* A call that makes communicators. */
struct make_record {
	struct call_record call;
	__u64 made[MADE];  /* ncclComm_t, 0 for none */
	__u64 id[ID_WORDS];
};

SHARED(call_record);
SHARED(make_record);

/* Set before load. */
struct constants {
	__u32 calls; /* calls that one CPU may begin in a window; more are counted, not written */
	__u32 pad;
};

const volatile struct constants constants = {};
SHARED(constants);

/* Cookies; as in `Function::cookie`. */
#define FUNCTION(cookie) ((cookie) & 0xff)
#define NEW_COMM(cookie) (((cookie) >> 8) & 0xf) /* parameter that points to the new communicators, from 1 */
#define ID_AT(cookie) (((cookie) >> 12) & 0xf)   /* ID_BY_VALUE, or the parameter that points to it */
#define MANY(cookie) (((cookie) >> 16) & 1)      /* the second parameter is how many are made */

#define ID_BY_VALUE 15

/* A thread's call that has not returned. */
struct call {
	__u64 from;   /* 0: not recorded, because there were too many */
	__u64 sp;     /* stack pointer at the outermost entry */
	__u64 cookie;
	__u32 depth;  /* 0: none */
	__u32 pad;
	__u64 args[ARGS];
	__u64 id[ID_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call);
} nccl_calls SEC(".maps");

static __always_inline void parameters(struct pt_regs *ctx, __u64 *args)
{
	args[0] = PT_REGS_PARM1(ctx);
	args[1] = PT_REGS_PARM2(ctx);
	args[2] = PT_REGS_PARM3(ctx);
	args[3] = PT_REGS_PARM4(ctx);
	args[4] = PT_REGS_PARM5(ctx);
#if defined(__TARGET_ARCH_x86)
	/* The seventh lies on the stack, behind the return address. */
	args[5] = PT_REGS_PARM6(ctx);
	args[6] = 0;
	bpf_probe_read_user(&args[6], sizeof(args[6]), (void *)(PT_REGS_SP(ctx) + 8));
#else
	args[5] = PT_REGS_PARM6(ctx);
	args[6] = PT_REGS_PARM7(ctx);
#endif
}

/* One of the first seven parameters, counted from 1, 0 for any other. */
static __always_inline __u64 parameter(const __u64 *args, __u32 number)
{
	/* A switch, since the verifier accepts no computed index into a map's value. */
	switch (number) {
	case 1: return args[0];
	case 2: return args[1];
	case 3: return args[2];
	case 4: return args[3];
	case 5: return args[4];
	case 6: return args[5];
	case 7: return args[6];
	}
	return 0;
}

static __always_inline void read_id(struct call *call, struct pt_regs *ctx)
{
	__u32 at = ID_AT(call->cookie);
	__u64 from = parameter(call->args, at);

	__builtin_memset(call->id, 0, sizeof(call->id));
	if (at == ID_BY_VALUE) {
#if defined(__TARGET_ARCH_x86)
		/* A struct of this size is passed on the stack, behind the return address. */
		from = PT_REGS_SP(ctx) + 8;
#else
		/* The caller makes a copy and passes its address. */
		from = call->args[2];
#endif
	}
	if (from)
		bpf_probe_read_user(call->id, sizeof(call->id), (void *)from);
}

/* Whether this is an outermost call, whose return is to be seen. */
static __always_inline bool call_begins(struct pt_regs *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u64 now, sp = PT_REGS_SP(ctx);
	struct call *call = bpf_task_storage_get(&nccl_calls, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!call) {
		count_dropped();
		return false;
	}
	if (call->depth) {
		/* A nested call has its frame below; any other means that the last one was left by a
		 * jump or an exception and will never return. */
		if (sp < call->sp) {
			call->depth++;
			return false;
		}
		count_dropped();
	}
	now = bpf_ktime_get_ns();
	call->sp = sp;
	call->depth = 1;
	call->cookie = bpf_get_attach_cookie(ctx);
	if (!within_budget(now, constants.calls)) {
		count_dropped();
		call->from = 0;
		return true;
	}
	call->from = now;
	parameters(ctx, call->args);
	if (ID_AT(call->cookie))
		read_id(call, ctx);
	return true;
}

static __always_inline void fill(struct call_record *r, struct call *call, struct task_struct *p,
				 int result)
{
	r->from = call->from;
	r->tgid = p->tgid;
	r->function = FUNCTION(call->cookie);
	r->result = result;
	r->pad = 0;
	__builtin_memcpy(r->args, call->args, sizeof(r->args));
}

static __always_inline void record_call(struct call *call, struct task_struct *p, int result)
{
	__u64 now = bpf_ktime_get_ns(), at, many;
	struct make_record *m;
	struct call_record *r;

	if (!NEW_COMM(call->cookie)) {
		r = reserve(KIND_CALL, sizeof(*r), now, p->pid);
		if (!r)
			return;
		fill(r, call, p, result);
		submit(r);
		return;
	}
	m = reserve(KIND_MAKE, sizeof(*m), now, p->pid);
	if (!m)
		return;
	fill(&m->call, call, p, result);
	__builtin_memset(m->made, 0, sizeof(m->made));
	__builtin_memcpy(m->id, call->id, sizeof(m->id));
	if (!ID_AT(call->cookie))
		__builtin_memset(m->id, 0, sizeof(m->id));
	at = parameter(call->args, NEW_COMM(call->cookie));
	many = MANY(call->cookie) ? (__u32)call->args[1] : 1;
	if (at && many) {
		if (many > MADE)
			many = MADE;
		bpf_probe_read_user(m->made, many * sizeof(m->made[0]), (void *)at);
	}
	submit(m);
}

static __always_inline int call_returns(struct pt_regs *ctx, bool nested)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct call *call = bpf_task_storage_get(&nccl_calls, p, 0, 0);

	if (!call || !call->depth)
		return 0;
	/* Returns of nested calls are seen only where each one has a return probe. */
	if (nested && --call->depth)
		return 0;
	call->depth = 0;
	if (call->from)
		record_call(call, p, (int)PT_REGS_RC(ctx));
	return 0;
}

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int nccl_session(struct pt_regs *ctx)
{
	if (bpf_session_is_return())
		return call_returns(ctx, false);
	/* 1: do not run at the return of this call. */
	return call_begins(ctx) ? 0 : 1;
}

SEC("uprobe.multi")
int nccl_entry(struct pt_regs *ctx)
{
	call_begins(ctx);
	return 0;
}

SEC("uretprobe.multi")
int nccl_return(struct pt_regs *ctx)
{
	return call_returns(ctx, true);
}
