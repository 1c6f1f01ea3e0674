/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The kernel's sockets, as far as the probes read them. */
#ifndef GPUWHY_SOCKET_H
#define GPUWHY_SOCKET_H

#include "kernel.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOCK_DGRAM 2

/* States of TCP sockets. */
#define TCP_SYN_SENT 2
#define TCP_TIME_WAIT 6
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12

struct in6_addr {
	__u8 bytes[16];
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} CORE;

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	__u16 sk_type;
	__u8 sk_userlocks; /* a bit field until Linux 6.17 */
} CORE;

#endif
