// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
//
// Which packets of an interface belong to the gateway's workers, and which to the kernel.
//
//   not IP, or not to this port's own Ethernet address        → kernel: ARP, LLDP, bridging
//   to a local IP address: ESP, and ESP in UDP on known ports  → worker
//                          everything else                     → kernel: IKE, SSH, BGP, ping
//   to IPv6 link-local, to multicast, to the IPv4 broadcast    → kernel: ND, routing protocols
//   a DHCP answer to this port, while it has no address        → kernel: its DHCP client
//   to any other IP address, well-formed or not                → worker, which forwards it,
//                                                                seals it, or names why not
//
// A packet for a worker never falls back to the kernel: when the worker's socket is gone (the
// gateway was killed) it is dropped here. The kernel knows nothing of the gateway's policies and
// would forward in clear what is to be protected.
//
// Fragments to a local address go to the kernel, which reassembles them for its own sockets (long
// IKE messages). ESP that was fragmented on its way is therefore lost; senders set DF.

#include "packet.h"

// Local addresses of each family: a gateway may have an endpoint per tunnel. They are allocated
// as they come (`NO_PREALLOC`, include/uapi/linux/bpf.h); most hosts have a handful.
#define LOCAL_ADDRESSES_MAX 65536
#define NO_PREALLOC 1
#define QUEUES_MAX 256
#define LANES_MAX 64 // sockets of one queue
#define SPI_FIRST 256  // RFC 4303 section 2.1: 1 to 255 are reserved, 0 is never sent

// What became of a packet. One count each, so that they add up to the packets seen. The order
// is that of `VERDICTS` in crates/xsk/src/steer.rs.
enum verdict {
	TO_WORKER_TRANSIT, // to be forwarded
	TO_WORKER_ESP,     // ESP to a local address
	TO_WORKER_NATT,    // ESP in UDP to a local address
	PASS_NOT_IP,       // neither IPv4 nor IPv6
	PASS_NOT_OURS,     // to another Ethernet address: broadcast, multicast, promiscuous
	PASS_LOCAL,        // to a local address, not ESP
	PASS_KEEPALIVE,    // to a port of ESP in UDP: one byte that keeps a NAT's memory fresh
	PASS_FRAGMENT,     // a fragment to a local address
	PASS_ESP_RESERVED, // ESP to a local address with an SPI below 256, or without one
	PASS_CONTROL,      // IPv6 link-local, multicast, IPv4 broadcast
	PASS_DHCP,         // a DHCP answer to the port itself, which has no IPv4 address yet
	DROP_OVERSIZE,     // for a worker, but in more than one buffer: longer than a chunk
	DROP_NO_SOCKET,    // for a worker, but its socket is gone
	VERDICTS,
};

// Set before loading or, by single aligned stores, while running.
volatile __u64 own_address; // the port's Ethernet address, its bytes in memory order, then two 0
volatile __u64 esp_ports[1024]; // a bit for each UDP port on which ESP arrives
volatile __u8 awaits_dhcp; // the port has no IPv4 address
volatile __u8 spread; // packets to be forwarded go to any socket of their queue, not to the first
volatile __u8 lanes[QUEUES_MAX]; // sockets of each receive queue; none counts as one

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX * LANES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCAL_ADDRESSES_MAX);
	__uint(map_flags, NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} local_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCAL_ADDRESSES_MAX);
	__uint(map_flags, NO_PREALLOC);
	__type(key, struct ipv6_address);
	__type(value, __u8);
} local_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

INLINE int is_own_address(const struct cursor *at)
{
	// Fourteen bytes are there: parse_ethernet has read them.
	const struct ethernet *ethernet = peek(at, sizeof(*ethernet));
	__u64 address = 0;

	if (!ethernet)
		return 0;
	__builtin_memcpy(&address, ethernet->destination, 6);
	return address == own_address;
}

// ESP at the cursor. A reserved SPI is no SA of ours; let the kernel answer as it likes.
INLINE enum verdict judge_esp(struct cursor *at, enum verdict to_worker, enum verdict otherwise)
{
	const __u32 *spi = peek(at, sizeof(*spi));

	if (!spi)
		return otherwise;
	at->whose = *spi;
	return net32(*spi) >= SPI_FIRST ? to_worker : otherwise;
}

// A packet to a local address, the cursor behind the IP headers.
INLINE enum verdict judge_local(struct cursor *at, __u32 protocol)
{
	const struct udp *udp;
	const __u8 *first;
	__u32 port;

	if (protocol == PROTOCOL_IS_FRAGMENT)
		return PASS_FRAGMENT;
	if (protocol == PROTOCOL_ESP)
		return judge_esp(at, TO_WORKER_ESP, PASS_ESP_RESERVED);
	if (protocol != PROTOCOL_UDP)
		return PASS_LOCAL;
	udp = peek(at, sizeof(*udp));
	if (!udp)
		return PASS_LOCAL;
	port = net16(udp->destination);
	if (!(esp_ports[port / 64 & 1023] >> port % 64 & 1))
		return PASS_LOCAL;
	// RFC 3948 section 2.2: four zero bytes in place of the SPI mark an IKE message; section
	// 2.3: a keepalive is a single byte, 0xff. Both are the IKE daemon's and the kernel's
	// business; its socket takes the first and ignores the second.
	at->offset += sizeof(*udp);
	first = peek(at, sizeof(*first));
	if (first && *first == 0xff && net16(udp->length) == sizeof(*udp) + 1)
		return PASS_KEEPALIVE;
	return judge_esp(at, TO_WORKER_NATT, PASS_LOCAL);
}

INLINE enum verdict judge_ipv4(struct cursor *at)
{
	const struct ipv4 *ip = peek(at, sizeof(*ip));
	__u32 destination;

	if (!ip)
		return TO_WORKER_TRANSIT;
	destination = ip->destination;
	at->whose = ip->source * 31 ^ destination;
	if (bpf_map_lookup_elem(&local_v4, &destination))
		return judge_local(at, skip_ipv4(at, ip));
	// 224.0.0.0/4 (RFC 5771) and 255.255.255.255 (RFC 919): a DHCP answer, OSPF, VRRP.
	if (net32(destination) >> 28 == 0xe || destination == 0xffffffff)
		return PASS_CONTROL;
	// RFC 2131 section 4.1: sent to an address that the client does not have yet.
	if (awaits_dhcp && is_dhcp_answer(at, ip, own_address))
		return PASS_DHCP;
	return TO_WORKER_TRANSIT;
}

INLINE enum verdict judge_ipv6(struct cursor *at)
{
	const struct ipv6 *ip = peek(at, sizeof(*ip));
	struct ipv6_address destination;
	__u32 first;

	if (!ip)
		return TO_WORKER_TRANSIT;
	destination = ip->destination;
	for (int word = 0; word < 4; word++)
		at->whose = (at->whose * 31 ^ ip->source.word[word]) * 31 ^ destination.word[word];
	// RFC 4291 section 2.4: ff00::/8 is multicast, fe80::/10 link-local and never forwarded.
	first = net32(destination.word[0]);
	if (first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6)
		return PASS_CONTROL;
	if (bpf_map_lookup_elem(&local_v6, &destination))
		return judge_local(at, skip_ipv6(at, ip));
	return TO_WORKER_TRANSIT;
}

INLINE enum verdict judge(struct xdp_md *ctx, __u32 *whose)
{
	enum verdict verdict;
	struct cursor at = {
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};
	const struct cursor begin = at;
	__u16 type = parse_ethernet(&at);

	if (type != ETHERTYPE_IPV4 && type != ETHERTYPE_IPV6)
		return PASS_NOT_IP;
	if (!is_own_address(&begin))
		return PASS_NOT_OURS;
	verdict = type == ETHERTYPE_IPV4 ? judge_ipv4(&at) : judge_ipv6(&at);
	*whose = at.whose;
	return verdict;
}

// The socket of a packet: the only one of its queue, or the one that its SA leads to, by the SPI,
// inside UDP or not. What is to be forwarded, and may be sealed, goes to the first one, which gives the
// packets of a tunnel their numbers in order; or, where order does not matter, where its addresses
// lead. Fragments have addresses like the rest; ports they may not have.
INLINE __u32 socket_of(struct xdp_md *ctx, enum verdict verdict, __u32 whose)
{
	__u32 queue = ctx->rx_queue_index;
	__u64 count = lanes[queue & (QUEUES_MAX - 1)];

	if (verdict == TO_WORKER_TRANSIT && !spread)
		return queue * LANES_MAX;

	// Murmur3's finalizer: every bit of the key counts in the upper bits, which choose.
	whose ^= whose >> 16;
	whose *= 0x85ebca6b;
	whose ^= whose >> 13;
	whose *= 0xc2b2ae35;
	whose ^= whose >> 16;
	return queue * LANES_MAX + (__u32)(count * whose >> 32);
}

INLINE void count(enum verdict verdict)
{
	__u32 key = verdict;
	__u64 *counter = bpf_map_lookup_elem(&counters, &key);

	if (counter)
		*counter += 1;
}

SEC("xdp.frags")
int peregrine_steer(struct xdp_md *ctx)
{
	__u32 whose = 0;
	enum verdict verdict = judge(ctx, &whose);
	int action = XDP_PASS;

	if (verdict <= TO_WORKER_NATT) {
		if (bpf_xdp_get_buff_len(ctx) != (__u64)ctx->data_end - (__u64)ctx->data) {
			verdict = DROP_OVERSIZE;
			action = XDP_DROP;
		} else {
			// The last argument is what happens without a socket: the packet dies.
			action = bpf_redirect_map(&xsks, socket_of(ctx, verdict, whose), XDP_DROP);
			if (action != XDP_REDIRECT)
				verdict = DROP_NO_SOCKET;
		}
	}
	count(verdict);
	return action;
}

char dual_license[] SEC("license") = "Dual BSD/GPL";
