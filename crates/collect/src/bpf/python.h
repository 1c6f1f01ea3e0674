/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The stack of Python functions of the running thread, read from its process's memory by the thread itself, so that
 * nothing changes meanwhile. Code objects are named by user space.
 */
#ifndef PYTHON_H
#define PYTHON_H

#include "gpuwhy.h"

/* Frames that are noted, those of C among them, and threads of an interpreter that are looked through. */
#define PYTHON_DEPTH 32
#define PYTHON_THREADS 128
/* Frames of these and higher owners are C's and no function of Python (pycore_frame.h of 3.12 and later). */
#define OWNED_BY_C 3

struct python_frame {
	__u64 code;        /* its code object; 0: it is no function of Python */
	__u64 instruction; /* an address, or before 3.11 a number */
};

SHARED(python_frame);

/* Where the interpreter keeps what it knows of a thread. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, __u64);
} python_threads SEC(".maps");

static __always_inline __u64 user_word(__u64 at)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)at);
	return word;
}

/* What the interpreter of process `tgid` knows of the running thread; 0 if that is none of its threads. */
__noinline __u64 python_thread(__u32 tgid)
{
	struct python *py = bpf_map_lookup_elem(&pythons, &tgid);
	struct task_struct___x86 *x86 = (void *)bpf_get_current_task_btf();
	__u64 id, state, *known;
	__u32 tid = bpf_get_current_pid_tgid(), i;

	if (!py || !bpf_core_field_exists(x86->thread.fsbase))
		return 0;
	id = BPF_CORE_READ(x86, thread.fsbase);
	known = bpf_map_lookup_elem(&python_threads, &tid);
	if (known && user_word(*known + py->thread_id) == id)
		return *known;
	state = user_word(user_word(py->from + py->interpreters) + py->threads);
	for (i = 0; i < PYTHON_THREADS && state; i++) {
		if (user_word(state + py->thread_id) == id) {
			bpf_map_update_elem(&python_threads, &tid, &state, BPF_ANY);
			return state;
		}
		state = user_word(state + py->next_thread);
	}
	return 0;
}

/* The functions of Python that the running thread is in, the innermost first; how many frames were noted. */
static __always_inline __u32 python_stack(struct python_frame *out)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, i;
	struct python *py = bpf_map_lookup_elem(&pythons, &tgid);
	__u64 frame;

	if (!py || !py->interpreters)
		return 0;
	frame = python_thread(tgid);
	if (!frame)
		return 0;
	frame = user_word(frame + py->frame);
	if (py->in_between != PYTHON_NONE)
		frame = user_word(frame + py->in_between);
	for (i = 0; i < PYTHON_DEPTH && frame; i++) {
		__u8 owner = 0;

		if (py->owner != PYTHON_NONE)
			bpf_probe_read_user(&owner, sizeof(owner), (void *)(frame + py->owner));
		/* The lowest bits of a reference say whether it is counted (3.14). */
		out[i].code = owner < OWNED_BY_C ? user_word(frame + py->code) & ~7ULL : 0;
		out[i].instruction = user_word(frame + py->instruction);
		frame = user_word(frame + py->previous);
	}
	return i;
}

#endif
