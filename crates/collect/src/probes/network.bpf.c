// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* What the running thread sends, and what softirqs send: acknowledgements of the other end follow each packet. */
#define PENDINGS 2
#include "gpuwhy.h"
#include "process_sums.h"
#include "socket.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NICS 256
#define IFNAMSIZ 16
#define IFF_LOOPBACK 0x8
#define TCQ_F_NOLOCK 0x100
#define MSG_PEEK 2

struct ns_common {
	unsigned int inum;
} CORE;

struct net {
	struct ns_common ns;
	__u64 net_cookie;
} CORE;

typedef struct {
	struct net *net;
} CORE possible_net_t;

struct device {
	struct device *parent;
} CORE;

struct net_device {
	unsigned int flags;
	int ifindex;
	possible_net_t nd_net;
	char name[IFNAMSIZ];
	struct device dev;
} CORE;

struct tcp_sock {
	__u32 copied_seq;
	__u32 write_seq;
} CORE;

/* include/net/inet_hashtables.h: below 0 where `connect` has chosen the port. */
struct inet_bind_bucket {
	signed char fastreuse;
} CORE;

struct inet_connection_sock {
	struct inet_bind_bucket *icsk_bind_hash;
} CORE;

struct unix_address;

struct unix_sock {
	struct unix_address *addr;
	struct sock *peer;
} CORE;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned int len;
	__u32 hash;
	unsigned char *head;
} CORE;

struct qdisc_skb_head {
	__u32 qlen;
} CORE;

struct Qdisc {
	unsigned int flags;
	struct qdisc_skb_head q;
} CORE;

struct netdev_queue {
	struct net_device *dev;
} CORE;

struct napi_struct {
	struct net_device *dev;
} CORE;

/* Their numbers differ between kernels. */
enum skb_drop_reason {
	SKB_DROP_REASON_QDISC_DROP,
	SKB_DROP_REASON_QDISC_OVERLIMIT,
	SKB_DROP_REASON_QDISC_CONGESTED,
	SKB_DROP_REASON_CPU_BACKLOG,
	SKB_DROP_REASON_TC_EGRESS,
	SKB_DROP_REASON_FULL_RING,
	SKB_DROP_REASON_DEV_READY,
	SKB_DROP_REASON_NOMEM,
};

/* The length of a tick: `peak` holds the longest queue within one. */
const volatile __u64 tick_ns = 10000000;

/*
 * Jiffies when a softirq last sent a packet that has no socket: a packet that is forwarded. Most
 * hosts forward nothing, and need not remember the process of each packet.
 */
__u64 forwarded;

#define REMEMBERED 60000 /* jiffies: 1 to 10 minutes, depending on HZ */

/* One network device: totals since the slot was taken. */
struct nic {
	__u64 key;   /* net_cookie << 20 | ifindex; 0 for a free slot */
	__u64 used;  /* jiffies when a packet was last sent through it */
	__u64 tx_bytes;
	__u64 drops;
	__u64 polls;
	__u64 polled;
	__u64 queue_ns; /* packets in the queue times how long they were there */
	__u64 since;    /* up to when `queue_ns` is summed */
	__s64 queued;   /* packets in the queue since then */
	__u64 peak_tick;
	__u64 peak;     /* most packets in the queue in that tick */
	__u32 netns;
	__u32 ifindex;
	__u32 loopback;
	__u32 is_virtual;
	char name[IFNAMSIZ];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NICS);
	__type(key, __u32);
	__type(value, struct nic);
} nics SEC(".maps");

/* How many packets a queueing discipline held when it last changed. */
struct fill {
	__s64 packets;
	__u32 slot;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct fill);
} fills SEC(".maps");

/*
 * Process of a TCP socket, or of a packet that passes through virtual devices. The memory of a packet
 * is soon used for another one, so that its length must be the same as well, and its hash or, if it
 * has none, its buffer, which is a new one for a TCP packet that is forwarded. For a socket all are 0.
 */
struct owner {
	__u64 head;
	__u32 hash;
	__u32 len;
	__u32 tgid;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct owner);
} owners SEC(".maps");

/* Per CPU: what belongs to no device. */
struct host_totals {
	__u64 retransmits;
	__u64 backlog_polls;
	__u64 backlog_packets;
	__u64 lost; /* packets of devices that found no slot */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* the number of CPUs, by user space */
	__type(key, __u32);
	__type(value, struct host_totals);
} host_totals SEC(".maps");

/* A send or receive of a thread of interest. */
struct message {
	struct head head; /* ts: when the call returned */
	__u8 local[16];   /* IPv4 as ::ffff:a.b.c.d; of a Unix socket ffff:ffff:ffff:ffff and its cookie */
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 tgid;
	__u32 bytes;
	__u32 position;
	__u32 receive;
	__u32 role; /* of the local end, by how its connection was made: 0 where that is not known */
};

SHARED(message);

#define ROLE_ASKS 1
#define ROLE_IS_ASKED 2

static __always_inline struct host_totals *totals_of_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&host_totals, &cpu);
}

static __always_inline void take_slot(struct nic *nic, struct net_device *dev, struct net *net)
{
	nic->tx_bytes = nic->drops = nic->polls = nic->polled = 0;
	nic->queue_ns = nic->since = nic->queued = nic->peak_tick = nic->peak = 0;
	nic->netns = net->ns.inum;
	nic->ifindex = dev->ifindex;
	nic->loopback = !!(dev->flags & IFF_LOOPBACK);
	nic->is_virtual = !dev->dev.parent;
	bpf_probe_read_kernel_str(nic->name, sizeof(nic->name), dev->name);
}

/* The slot of a device; NICS if there is none left. */
static __always_inline __u32 nic_of(struct net_device *dev)
{
	struct net *net = dev->nd_net.net;
	__u64 space = bpf_core_field_exists(net->net_cookie) ? net->net_cookie : net->ns.inum;
	__u64 key = space << 20 | (dev->ifindex & 0xfffff);
	__u32 at = (__u32)(key ^ (key >> 20) * 31);
	__u64 oldest = ~0ULL;
	__u32 old = NICS;

	for (int i = 0; i < 8; i++) {
		__u32 slot = (at + i) % NICS;
		struct nic *nic = bpf_map_lookup_elem(&nics, &slot);

		if (!nic)
			return NICS;
		if (nic->key == key)
			return slot;
		if (!nic->key && __sync_val_compare_and_swap(&nic->key, 0, key) == 0) {
			take_slot(nic, dev, net);
			return slot;
		}
		if (nic->key == key)
			return slot;
		if (nic->used < oldest) {
			oldest = nic->used;
			old = slot;
		}
	}
	/*
	 * Containers come and go: a device that sent nothing for 1 to 10 minutes (depending on HZ)
	 * loses its slot.
	 */
	if (old < NICS && oldest + REMEMBERED < bpf_jiffies64()) {
		struct nic *nic = bpf_map_lookup_elem(&nics, &old);

		if (nic) {
			__u64 before = nic->key;

			if (__sync_val_compare_and_swap(&nic->key, before, key) == before) {
				take_slot(nic, dev, net);
				return old;
			}
		}
	}
	return NICS;
}

static __always_inline struct nic *nic_at(__u32 slot)
{
	return bpf_map_lookup_elem(&nics, &slot);
}

static __always_inline void set_owner(__u64 key, const struct owner *now)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, &key);

	if (!owner)
		bpf_map_update_elem(&owners, &key, now, BPF_ANY);
	else if (owner->tgid != now->tgid || owner->head != now->head || owner->hash != now->hash ||
		 owner->len != now->len)
		/* Only then: two CPUs that send on one socket would pass the line to and fro. */
		*owner = *now;
}

static __always_inline __u32 owner_of_packet(struct sk_buff *skb)
{
	__u64 key = (__u64)skb;
	struct owner *owner = bpf_map_lookup_elem(&owners, &key);

	if (!owner || owner->len != skb->len)
		return 0;
	if ((!owner->hash || owner->hash != skb->hash) && owner->head != (__u64)skb->head)
		return 0;
	return owner->tgid;
}

/* The TCP socket of a packet, which may later send from softirqs, or NULL. */
static __always_inline struct sock *tcp_of(struct sk_buff *skb)
{
	struct sock *sk = skb->sk;
	unsigned char state;

	if (!sk)
		return NULL;
	state = sk->__sk_common.skc_state;
	/* These are smaller than a socket. */
	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return NULL;
	return sk->sk_protocol == IPPROTO_TCP ? sk : NULL;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(net_dev_queue, struct sk_buff *skb)
{
	__u32 slot = nic_of(skb->dev);
	struct nic *nic = nic_at(slot);
	struct pending *pending;
	bool running = in_task(), passes;
	__u32 owner = 0;
	__u64 key, jiffies;

	if (!nic) {
		struct host_totals *mine = totals_of_cpu();

		if (mine)
			mine->lost++;
		return 0;
	}
	jiffies = bpf_jiffies64();
	if (nic->used != jiffies)
		nic->used = jiffies;
	__sync_fetch_and_add(&nic->tx_bytes, skb->len);

	if (!running && !skb->sk)
		forwarded = jiffies;
	/* It comes out at the other end of the virtual device, and may be forwarded from there, in a
	 * softirq. */
	passes = nic->is_virtual && !nic->loopback && forwarded && jiffies - forwarded < REMEMBERED;
	key = (__u64)tcp_of(skb);
	if (running) {
		struct owner now = { .tgid = owner = bpf_get_current_pid_tgid() >> 32 };

		if (key)
			set_owner(key, &now);
		if (passes) {
			now.len = skb->len;
			now.hash = skb->hash;
			now.head = (__u64)skb->head;
			set_owner((__u64)skb, &now);
		}
	} else {
		/* While a softirq sends, the running thread has nothing to do with it. */
		struct owner *known = key ? bpf_map_lookup_elem(&owners, &key) : NULL;

		owner = known ? known->tgid : owner_of_packet(skb);
		if (owner && passes) {
			struct owner now = { .head = (__u64)skb->head, .hash = skb->hash,
					     .len = skb->len, .tgid = owner };

			set_owner((__u64)skb, &now);
		}
	}
	if (!owner)
		return 0;
	if (running)
		pending = pending_of(0, owner, slot, COMM_RUNNING);
	else
		pending = pending_of(1, owner, slot, COMM_UNKNOWN);
	if (pending)
		pending->n[0] += skb->len;
	return 0;
}

/*
 * The number of packets in the queue of `qdisc` has changed: sums up how long they were there so far.
 * Packets may be cut into segments inside, so that lengths are compared instead of packets
 * followed; `delta` is the change where the kernel keeps the length per CPU.
 */
static __always_inline void queue_changed(struct Qdisc *qdisc, struct net_device *dev, __s64 delta)
{
	__u64 key = (__u64)qdisc, now = bpf_ktime_get_ns(), tick = now / tick_ns, since;
	struct fill *fill = bpf_map_lookup_elem(&fills, &key);
	__s64 before, change, queued;
	struct nic *nic;

	if (!fill) {
		struct fill fresh = { .slot = nic_of(dev) };

		bpf_map_update_elem(&fills, &key, &fresh, BPF_NOEXIST);
		fill = bpf_map_lookup_elem(&fills, &key);
		if (!fill)
			return;
	}
	nic = nic_at(fill->slot);
	if (!nic)
		return;
	if (qdisc->flags & TCQ_F_NOLOCK) {
		/* Packets that were in it before the probe started leave without having been counted in. */
		change = delta < 0 && fill->packets + delta < 0 ? -fill->packets : delta;
		__sync_fetch_and_add(&fill->packets, change);
	} else {
		before = fill->packets;
		fill->packets = qdisc->q.qlen;
		change = fill->packets - before;
	}
	since = __sync_lock_test_and_set(&nic->since, now);
	queued = nic->queued;
	if (since && now > since && queued > 0)
		__sync_fetch_and_add(&nic->queue_ns, (now - since) * queued);
	__sync_fetch_and_add(&nic->queued, change);
	queued = nic->queued;
	if (queued < 0)
		queued = 0;
	if (nic->peak_tick != tick) {
		nic->peak_tick = tick;
		nic->peak = queued;
	} else if (queued > nic->peak) {
		nic->peak = queued;
	}
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(qdisc_enqueue, struct Qdisc *qdisc, struct netdev_queue *txq, struct sk_buff *skb)
{
	queue_changed(qdisc, txq->dev, 1);
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(qdisc_dequeue, struct Qdisc *qdisc, struct netdev_queue *txq, int packets)
{
	/* A rate limit that lets no packet go is asked nonetheless. */
	if (packets > 0)
		queue_changed(qdisc, txq->dev, -packets);
	return 0;
}

/* Emptied, or about to be destroyed. */
SEC("tp_btf/qdisc_reset")
int BPF_PROG(qdisc_reset, struct Qdisc *qdisc)
{
	__u64 key = (__u64)qdisc;
	struct fill *fill = bpf_map_lookup_elem(&fills, &key);
	struct nic *nic;

	if (!fill)
		return 0;
	nic = nic_at(fill->slot);
	if (nic)
		__sync_fetch_and_add(&nic->queued, -fill->packets);
	bpf_map_delete_elem(&fills, &key);
	return 0;
}

#define IS(reason, name)                                                                           \
	(bpf_core_enum_value_exists(enum skb_drop_reason, name) &&                                 \
	 (reason) == bpf_core_enum_value(enum skb_drop_reason, name))

SEC("tp_btf/kfree_skb")
int BPF_PROG(kfree_skb, struct sk_buff *skb, void *location, int reason)
{
	struct net_device *dev;
	struct nic *nic;

	/* Of the many reasons only those that mean that a device or its queue was full. */
	if (!IS(reason, SKB_DROP_REASON_QDISC_DROP) &&
	    !IS(reason, SKB_DROP_REASON_QDISC_OVERLIMIT) &&
	    !IS(reason, SKB_DROP_REASON_QDISC_CONGESTED) &&
	    !IS(reason, SKB_DROP_REASON_CPU_BACKLOG) && !IS(reason, SKB_DROP_REASON_TC_EGRESS) &&
	    !IS(reason, SKB_DROP_REASON_FULL_RING) && !IS(reason, SKB_DROP_REASON_DEV_READY) &&
	    !IS(reason, SKB_DROP_REASON_NOMEM))
		return 0;
	dev = skb->dev;
	if (!dev)
		return 0;
	nic = nic_at(nic_of(dev));
	if (nic)
		__sync_fetch_and_add(&nic->drops, 1);
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work)
{
	struct net_device *dev = napi->dev;
	struct nic *nic;

	if (!dev) {
		/* Loopback and veth: packets that wait in the backlog of the CPU itself. */
		struct host_totals *mine = totals_of_cpu();

		if (mine) {
			mine->backlog_polls++;
			mine->backlog_packets += work;
		}
		return 0;
	}
	nic = nic_at(nic_of(dev));
	if (nic) {
		__sync_fetch_and_add(&nic->polls, 1);
		__sync_fetch_and_add(&nic->polled, work);
	}
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(tcp_retransmit_skb)
{
	struct host_totals *mine = totals_of_cpu();

	if (mine)
		mine->retransmits++;
	return 0;
}

/*
 * Its two ends by their cookies, as `ss -xe` shows them (`sk:`). A socket has its own before it is accepted and after it is
 * closed, and holds a reference of its peer until it is released itself, which it is not within a call that sends or
 * receives. In place of ports it is written which of them has a name: a client's has none.
 */
#define UNNAMED 0xffff
#define NAMED 1

static __always_inline void unix_ends(struct sock *sk, struct message *message)
{
	__u64 *local = (__u64 *)message->local, *remote = (__u64 *)message->remote;
	struct unix_sock *known = bpf_skc_to_unix_sock(sk);

	local[0] = remote[0] = ~0ULL;
	local[1] = bpf_get_socket_cookie(sk);
	remote[1] = known ? bpf_get_socket_cookie(known->peer) : 0;
	message->local_port = message->remote_port = UNNAMED;
	if (known && known->addr)
		message->local_port = NAMED;
	if (known && BPF_CORE_READ((struct unix_sock *)known->peer, addr))
		message->remote_port = NAMED;
	message->position = 0;
}

static __always_inline void tcp_ends(struct sock *sk, struct message *message, __u16 family, bool receive)
{
	if (family == AF_INET) {
		__u32 *local = (__u32 *)message->local, *remote = (__u32 *)message->remote;

		local[0] = local[1] = remote[0] = remote[1] = 0;
		local[2] = remote[2] = bpf_htonl(0xffff);
		local[3] = sk->__sk_common.skc_rcv_saddr;
		remote[3] = sk->__sk_common.skc_daddr;
	} else {
		bpf_core_read(message->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(message->remote, 16, &sk->__sk_common.skc_v6_daddr);
	}
	message->local_port = sk->__sk_common.skc_num;
	message->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	message->position = receive ? BPF_CORE_READ((struct tcp_sock *)sk, copied_seq) :
				      BPF_CORE_READ((struct tcp_sock *)sk, write_seq);
}

/*
 * Who made a connection asks. A socket that was accepted has the port of the one that listens, which was bound; one that
 * connects has a port that `connect` chose, or was bound itself, which its lock tells (include/net/sock.h).
 */
#define SOCK_BINDPORT_LOCK 8

static __always_inline __u32 role_of(struct sock *sk)
{
	struct inet_bind_bucket *port = NULL;

	if (!bpf_core_field_exists(port->fastreuse) || !bpf_core_field_exists(sk->sk_userlocks))
		return 0;
	port = BPF_CORE_READ((struct inet_connection_sock *)sk, icsk_bind_hash);
	if (!port)
		return 0;
	if (BPF_CORE_READ(port, fastreuse) < 0 || BPF_CORE_READ_BITFIELD_PROBED(sk, sk_userlocks) & SOCK_BINDPORT_LOCK)
		return ROLE_ASKS;
	return ROLE_IS_ASKED;
}

static __always_inline bool is_stream(struct sock *sk, __u16 family)
{
	if (family == AF_UNIX)
		return bpf_core_type_exists(struct unix_sock) && sk->sk_type != SOCK_DGRAM;
	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_TCP;
}

static __always_inline int message(struct sock *sk, int bytes, bool receive)
{
	struct knobs *knobs = knobs_now();
	struct message *message;
	__u64 now, until;
	__u16 family;

	if (bytes <= 0 || !knobs || knobs->without_messages)
		return 0;
	/* Most threads never were of interest: reading the clock for them would be waste. */
	until = of_interest_until();
	if (!until)
		return 0;
	family = sk->__sk_common.skc_family;
	if (!is_stream(sk, family))
		return 0;
	now = bpf_ktime_get_ns();
	if (until <= now)
		return 0;
	message = reserve(ONLY_KIND, sizeof(*message), now, (__u32)bpf_get_current_pid_tgid());
	if (!message)
		return 0;
	message->role = 0;
	if (family == AF_UNIX) {
		unix_ends(sk, message);
	} else {
		tcp_ends(sk, message, family, receive);
		message->role = role_of(sk);
	}
	message->tgid = bpf_get_current_pid_tgid() >> 32;
	message->bytes = bytes;
	message->receive = receive;
	submit(message);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk, int bytes, int flags)
{
	return message(sk, bytes, false);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk, int bytes, int flags)
{
	return flags & MSG_PEEK ? 0 : message(sk, bytes, true);
}
