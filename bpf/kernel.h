// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
//
// The few kernel types, constants and helpers that our programs use, so that they build without
// a kernel's headers. All of it is stable ABI: the numbers never change.

#ifndef PEREGRINE_KERNEL_H
#define PEREGRINE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// Map definitions in BTF: `__uint` gives a number, `__type` a type.
#define __uint(name, value) int(*name)[value]
#define __type(name, type) typeof(type) *name

enum map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_XSKMAP = 17,
};

enum xdp_action {
	XDP_ABORTED = 0,
	XDP_DROP = 1,
	XDP_PASS = 2,
	XDP_TX = 3,
	XDP_REDIRECT = 4,
};

// The context of an XDP program. The verifier turns the 32-bit fields into pointers.
struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

// Helpers, by their numbers in the kernel.
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*const bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static __u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)188;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define net16(x) ((__u16)__builtin_bswap16(x))
#define net32(x) ((__u32)__builtin_bswap32(x))
#else
#define net16(x) ((__u16)(x))
#define net32(x) ((__u32)(x))
#endif

#endif
