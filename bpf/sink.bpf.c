// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
//
// The lab's receiving end: a frame of ours gets the time of its arrival, taken here and not when
// a program reads it, and goes to the AF_XDP socket of its queue. Everything else is the kernel's.
//
// A frame is ours when its UDP payload begins with the run's signature, at the fixed place that
// the lab's generator puts it: no VLAN tag, no IPv4 options, no IPv6 extension headers. Does not
// check sequence or content: the reader of the socket does.

#include "packet.h"

// Eight random bytes of one run, compared in memory order; set before loading.
const volatile __u64 signature = 0;

// What became of a frame; the order is that of `VERDICTS` in crates/xsk/src/sink.rs.
enum verdict {
	TO_SOCKET,        // ours, given to the socket
	PASS,             // not ours
	DROP_NO_SOCKET,   // ours, but nobody reads this queue
	DROP_NO_METADATA, // ours, but the driver has no room for the time
	DROP_OVERSIZE,    // ours, but in more than one buffer: longer than a chunk
	VERDICTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

// Ethernet, IP, UDP and the signature, as the generator lays them out.
struct frame_v4 {
	struct ethernet ethernet;
	struct ipv4 ip;
	struct udp udp;
	__u64 signature;
} __attribute__((packed));

struct frame_v6 {
	struct ethernet ethernet;
	struct ipv6 ip;
	struct udp udp;
	__u64 signature;
} __attribute__((packed));

INLINE int is_ours(struct xdp_md *ctx)
{
	struct cursor at = {
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};
	const struct frame_v4 *v4 = peek(&at, sizeof(*v4));
	const struct frame_v6 *v6;

	// The shorter frame; without it there is no room for the longer one either.
	if (!v4)
		return 0;
	if (v4->ethernet.type == net16(ETHERTYPE_IPV4))
		return v4->ip.version_length == 0x45 && v4->ip.protocol == PROTOCOL_UDP &&
		       v4->signature == signature;
	v6 = peek(&at, sizeof(*v6));
	return v6 && v6->ethernet.type == net16(ETHERTYPE_IPV6) &&
	       v6->ip.next_header == PROTOCOL_UDP && v6->signature == signature;
}

// Puts the time in front of the frame; false when there is no room.
INLINE int stamp(struct xdp_md *ctx)
{
	__u64 *time;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*time)))
		return 0;
	time = (void *)(long)ctx->data_meta;
	if ((void *)(time + 1) > (void *)(long)ctx->data)
		return 0;
	*time = bpf_ktime_get_ns();
	return 1;
}

INLINE void count(enum verdict verdict)
{
	__u32 key = verdict;
	__u64 *counter = bpf_map_lookup_elem(&counters, &key);

	if (counter)
		*counter += 1;
}

SEC("xdp.frags")
int peregrine_sink(struct xdp_md *ctx)
{
	enum verdict verdict = TO_SOCKET;
	int action = XDP_DROP;

	if (!is_ours(ctx)) {
		verdict = PASS;
		action = XDP_PASS;
	} else if (bpf_xdp_get_buff_len(ctx) != (__u64)ctx->data_end - (__u64)ctx->data) {
		verdict = DROP_OVERSIZE;
	} else if (!stamp(ctx)) {
		verdict = DROP_NO_METADATA;
	} else {
		action = bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_DROP);
		if (action != XDP_REDIRECT)
			verdict = DROP_NO_SOCKET;
	}
	count(verdict);
	return action;
}

char dual_license[] SEC("license") = "Dual BSD/GPL";
