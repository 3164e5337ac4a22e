// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
//
// Bounded parsing of Ethernet, up to two VLAN tags, IPv4 with options, IPv6 with up to eight
// extension headers. Finds where things are; decides nothing. Every function that reads packet
// bytes checks them against the end first and says when they are not there.
//
// Only sees tags that are in the packet: a VLAN tag that the NIC or veth took out before XDP ran
// (rxvlan, txvlan offload) is invisible here and must be switched off.

#ifndef PEREGRINE_PACKET_H
#define PEREGRINE_PACKET_H

#include "kernel.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_QINQ 0x88a8
#define ETHERTYPE_IPV6 0x86dd

#define PROTOCOL_HOP_BY_HOP 0
#define PROTOCOL_UDP 17
#define PROTOCOL_ROUTING 43
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_ESP 50
#define PROTOCOL_DESTINATION 60
#define PROTOCOL_MOBILITY 135
// Not a protocol: the packet is a fragment, or its headers are longer than the packet.
#define PROTOCOL_IS_FRAGMENT 0x100
#define PROTOCOL_UNREADABLE 0x101

#define DHCP_REPLY 2
#define DHCP_ETHERNET 1

#define VLAN_TAGS_MAX 2
// More extension headers than any sender has reason for; a ninth one makes the packet unreadable.
#define EXTENSIONS_MAX 8

struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__u16 type;
} __attribute__((packed));

struct vlan {
	__u16 tag;
	__u16 type;
};

struct ipv4 {
	__u8 version_length;
	__u8 tos;
	__u16 total_length;
	__u16 identification;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 source;
	__u32 destination;
};

struct ipv6_address {
	__u32 word[4];
};

struct ipv6 {
	__u32 version_class_label;
	__u16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	struct ipv6_address source;
	struct ipv6_address destination;
};

struct extension {
	__u8 next_header;
	__u8 length; // in 8 bytes, not counting the first 8
};

struct udp {
	__u16 source;
	__u16 destination;
	__u16 length;
	__u16 checksum;
};

// The fixed part of a DHCP message up to the client's address: RFC 2131 section 2.
struct dhcp {
	struct udp udp;
	__u8 op;
	__u8 hardware_type;
	__u8 hardware_length;
	__u8 skipped[25];
	__u8 client[6];
} __attribute__((packed));

// A packet being read: `offset` bytes are behind us.
struct cursor {
	void *data;
	void *end;
	__u32 offset;
	__u32 whose; // what tells it from packets that others may handle at the same time
};

// The next `len` bytes, or null when the packet ends before. Does not move.
INLINE void *peek(const struct cursor *at, __u32 len)
{
	// The headers above never take 16 KiB; the mask is for the verifier.
	void *place = at->data + (at->offset & 0x3fff);

	return place + len <= at->end ? place : (void *)0;
}

// Reads Ethernet and VLAN headers. Returns the type of what follows, in host byte order, and 0
// when the packet ends before it; then nothing follows that anyone forwards.
INLINE __u16 parse_ethernet(struct cursor *at)
{
	struct ethernet *ethernet = peek(at, sizeof(*ethernet));
	struct vlan *vlan;
	__u16 type;

	if (!ethernet)
		return 0;
	at->offset += sizeof(*ethernet);
	type = net16(ethernet->type);
	for (int tags = 0; tags < VLAN_TAGS_MAX; tags++) {
		if (type != ETHERTYPE_VLAN && type != ETHERTYPE_QINQ)
			break;
		vlan = peek(at, sizeof(*vlan));
		if (!vlan)
			return 0;
		at->offset += sizeof(*vlan);
		type = net16(vlan->type);
	}
	return type;
}

// Moves behind an IPv4 header and its options. Returns the protocol, or one of PROTOCOL_IS_….
INLINE __u32 skip_ipv4(struct cursor *at, const struct ipv4 *ip)
{
	__u32 length = (ip->version_length & 0xf) * 4;

	if (length < sizeof(*ip) || ip->version_length >> 4 != 4)
		return PROTOCOL_UNREADABLE;
	// More Fragments, or an offset: RFC 791 section 3.1.
	if (net16(ip->fragment) & 0x3fff)
		return PROTOCOL_IS_FRAGMENT;
	at->offset += length;
	return ip->protocol;
}

// Moves behind an IPv6 header and its extension headers. Returns the protocol, as above.
INLINE __u32 skip_ipv6(struct cursor *at, const struct ipv6 *ip)
{
	__u32 protocol = ip->next_header;
	struct extension *extension;

	if ((*(const __u8 *)ip) >> 4 != 6)
		return PROTOCOL_UNREADABLE;
	at->offset += sizeof(*ip);
	for (int count = 0; count <= EXTENSIONS_MAX; count++) {
		if (protocol == PROTOCOL_FRAGMENT)
			return PROTOCOL_IS_FRAGMENT;
		if (protocol != PROTOCOL_HOP_BY_HOP && protocol != PROTOCOL_ROUTING &&
		    protocol != PROTOCOL_DESTINATION && protocol != PROTOCOL_MOBILITY)
			return protocol;
		extension = peek(at, sizeof(*extension));
		if (!extension)
			return PROTOCOL_UNREADABLE;
		protocol = extension->next_header;
		at->offset += (extension->length + 1) * 8;
	}
	return PROTOCOL_UNREADABLE;
}

// Whether a whole IPv4 packet, the cursor at its header, is what a DHCP server (port 67) tells the
// client (port 68) with this Ethernet address (six bytes in memory order, then two 0).
INLINE int is_dhcp_answer(struct cursor *at, const struct ipv4 *ip, __u64 to)
{
	const struct dhcp *dhcp;
	__u64 client = 0;

	if (skip_ipv4(at, ip) != PROTOCOL_UDP)
		return 0;
	dhcp = peek(at, sizeof(*dhcp));
	if (!dhcp || net16(dhcp->udp.source) != 67 || net16(dhcp->udp.destination) != 68)
		return 0;
	__builtin_memcpy(&client, dhcp->client, 6);
	return dhcp->op == DHCP_REPLY && dhcp->hardware_type == DHCP_ETHERNET &&
	       dhcp->hardware_length == 6 && client == to;
}

#endif
