// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * TCP segments that are sent again, and the process that last sent on their socket.
 *
 * Retransmissions happen in softirqs and timers, in which the running thread has nothing to do with
 * them. So each socket remembers the thread that last sent on it, connected it, or made it listen.
 */
#define PENDINGS 2
#include "gpuwhy.h"
#include "process_sums.h"
#include "socket.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* States of the congestion control. */
#define TCP_CA_RECOVERY 3
#define TCP_CA_LOSS 4

struct inet_connection_sock {
	__u8 icsk_ca_state : 5;
} CORE;

struct sk_buff {
	unsigned int len;
} CORE;

/* What is summed for each process. */
enum summed {
	SUMMED_SEGMENTS, /* sent again */
	SUMMED_TIMEOUTS, /* of these, those that waited for a timeout */
};

/* Why a segment is sent again. */
enum reason {
	REASON_FAST,    /* later segments were acknowledged: about one round trip is lost */
	REASON_TIMEOUT, /* nothing was acknowledged: 200 ms or more are lost */
	REASON_PROBE,   /* the last segment of a burst, to find out whether it arrived */
	REASON_CONNECT, /* a request for a connection was not answered: 1 s or more is lost */
	REASON_ACCEPT,  /* an accepted connection was not confirmed: 1 s or more is lost */
};

SHARED_ENUM(summed);
SHARED_ENUM(reason);

/* Set before load. */
struct constants {
	__u32 has_error; /* tcp_retransmit_skb has a third argument: why it was not sent after all */
	__u32 pad;
};

const volatile struct constants constants = {};

/* The thread that last sent on a socket. */
struct sender {
	__u64 until; /* ns until which it is of interest */
	__u32 tid;
	__u32 tgid;
	char comm[TASK_COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sender);
} senders SEC(".maps");

/* A retransmission for a thread of interest. */
struct retransmit {
	struct head head; /* tid: the thread that last sent on the socket */
	__u32 tgid;
	__u32 bytes;
	__u32 reason;     /* enum reason */
	__u32 pad;
	char comm[TASK_COMM_LEN];
};

SHARED(retransmit);

static __always_inline void remember_sender(struct sock *sk)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct sender *sender;
	struct task *task;

	if (sk->sk_protocol != IPPROTO_TCP || !in_task())
		return;
	sender = bpf_sk_storage_get(&senders, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!sender)
		return;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (task)
		became_target(task, p);
	sender->until = task ? task->until : 0;
	if (sender->tid == p->pid && sender->tgid == p->tgid)
		return;
	sender->tid = p->pid;
	sender->tgid = p->tgid;
	bpf_get_current_comm(sender->comm, sizeof(sender->comm));
}

/* Since 6.3; on older kernels only processes that connect or listen are known. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk)
{
	remember_sender(sk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(inet_sock_set_state, struct sock *sk, int before, int state)
{
	if (state == TCP_SYN_SENT || state == TCP_LISTEN)
		remember_sender(sk);
	return 0;
}

static __always_inline void retransmitted(struct sock *sk, __u32 program, __u32 reason, __u32 bytes)
{
	struct sender *sender = bpf_sk_storage_get(&senders, sk, 0, 0);
	struct pending *pending;
	struct retransmit *r;
	__u64 now;

	if (!sender)
		return;
	pending = pending_of(program, sender->tgid, 0, sender->comm);
	if (pending) {
		pending->n[SUMMED_SEGMENTS]++;
		if (reason == REASON_TIMEOUT || reason == REASON_CONNECT || reason == REASON_ACCEPT)
			pending->n[SUMMED_TIMEOUTS]++;
	}
	now = bpf_ktime_get_ns();
	if (sender->until <= now)
		return;
	r = reserve(ONLY_KIND, sizeof(*r), now, sender->tid);
	if (!r)
		return;
	r->tgid = sender->tgid;
	r->bytes = bytes;
	r->reason = reason;
	r->pad = 0;
	__builtin_memcpy(r->comm, sender->comm, sizeof(r->comm));
	submit(r);
}

SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit_skb(unsigned long long *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	struct inet_connection_sock *connection = (void *)sk;
	__u32 state, reason = REASON_PROBE;

	if (constants.has_error && (int)ctx[2])
		return 0;
	state = BPF_CORE_READ_BITFIELD_PROBED(connection, icsk_ca_state);
	if (sk->__sk_common.skc_state == TCP_SYN_SENT)
		reason = REASON_CONNECT;
	else if (state == TCP_CA_LOSS)
		reason = REASON_TIMEOUT;
	else if (state == TCP_CA_RECOVERY)
		reason = REASON_FAST;
	retransmitted(sk, 0, reason, skb->len);
	return 0;
}

/* The socket is the one that listens. */
SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(tcp_retransmit_synack, struct sock *sk)
{
	retransmitted(sk, 1, REASON_ACCEPT, 0);
	return 0;
}
