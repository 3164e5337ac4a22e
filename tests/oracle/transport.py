"""An independent end point of transport mode: scapy on the wire, a socket on the gateway's own host.

Reads a plan (JSON) on standard input. Datagrams that the socket sends are decrypted where they leave
the gateway; packets that scapy seals, good and bad, must reach the socket or nobody. Prints one JSON
object with the findings; it judges nothing but equality of bytes, the calling test does the rest.

Plan: as that of esp.py, with the gateway's network namespace, for each case its number, and in `other`
the number of another case between the same addresses.
"""

import ctypes
import json
import os
import socket
import sys
import time

from scapy.layers.inet import IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN
from scapy.layers.ipsec import ESP, SecurityAssociation
from scapy.packet import Raw, raw

from esp import SIZES, Wire, ethernet, in_udp, network, off_wire, on_wire

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
PATIENCE_S = 3.0
TTL = 64
# Three times "no operation" and the end of options (RFC 791 section 3.1).
OPTIONS = b"\x01\x01\x01\x00"
# Next header (the kernel fills it in), length, and six bytes of PadN (RFC 8200 section 4.2).
EXTENSION = b"\x00\x00\x01\x04\x00\x00\x00\x00"
IPV6_HOPOPTS, IPV6_DSTOPTS = 54, 59
MARK = b"larger than the device carries in one packet"


def own_socket(namespace, case):
    """A socket of the gateway's host, connected to the peer."""
    family = socket.AF_INET if case["outer"] == 4 else socket.AF_INET6
    home, there = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", namespace))
    assert LIBC.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    own = socket.socket(family, socket.SOCK_DGRAM)
    assert LIBC.setns(home, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    os.close(home), os.close(there)
    own.bind((case["local_outer"], 6000 + case["number"]))
    own.connect((case["remote_outer"], 7000 + case["number"]))
    own.settimeout(PATIENCE_S)
    return own


def with_options(case, own, wanted):
    """Whether the socket's packets have a header longer than the shortest."""
    if case["outer"] == 4:
        own.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, OPTIONS if wanted else b"")
    else:
        for option in (IPV6_HOPOPTS, IPV6_DSTOPTS):
            own.setsockopt(socket.IPPROTO_IPV6, option, EXTENSION if wanted else b"")


def association(case, spi):
    return SecurityAssociation(ESP, spi=spi, crypt_algo="AES-GCM",
                               crypt_key=bytes.fromhex(case["key"]), esn_en=case["esn"], esn=0)


def content(number, size):
    return bytes((number * 7 + i) & 0xFF for i in range(size))


def built_anew(packet):
    """The packet with lengths and checksums as scapy makes them."""
    packet = packet.copy()
    del packet[UDP].chksum, packet[UDP].len
    if packet.version == 4:
        del packet.len, packet.chksum, packet.ihl
    else:
        del packet.plen
    return raw(packet)


def check_header(packet):
    """What is wrong with the header in front of ESP, or nothing."""
    copy, faults = packet.copy(), []
    if copy.version == 4:
        del copy.len, copy.chksum
    else:
        del copy.plen
    if raw(copy) != raw(packet):
        faults.append(f"header of {raw(packet).hex()}")
    ttl = packet.ttl if packet.version == 4 else packet.hlim
    if ttl != TTL:
        faults.append(f"ttl {ttl}")
    return faults


def check_inner(case, inner, expected):
    """What is wrong with a packet that was decrypted, or nothing."""
    if UDP not in inner:
        return [f"no datagram: {raw(inner).hex()}"]
    datagram, faults = inner[UDP], []
    ends = [inner.src, inner.dst, datagram.sport, datagram.dport]
    number = case["number"]
    if ends != [case["local_outer"], case["remote_outer"], 6000 + number, 7000 + number]:
        faults.append(f"ends {ends}")
    if raw(datagram)[8:] != expected:
        faults.append(f"content {raw(datagram)[8:].hex()} != {expected.hex()}")
    if raw(inner) != built_anew(inner):
        faults.append(f"lengths or checksums of {raw(inner).hex()}")
    return faults


def sealed_by_gateway(case, own, black):
    """Datagrams of the host in, ESP out: decrypt and compare."""
    sa = association(case, case["spi_out"])
    black.drain()

    def wanted(frame):
        packet = network(frame)
        found = None if packet is None else off_wire(case, packet)
        if found is None or found[0][ESP].spi != case["spi_out"]:
            return None
        return packet, *found

    # The first packet makes the kernel resolve the neighbour; it may be lost, and is not one of ours.
    for _ in range(20):
        own.send(b"warm")
        if black.receive(wanted, 1, 0.2):
            break
    time.sleep(0.1)
    black.drain()
    sent = [content(i, size) for i, size in enumerate(SIZES)]
    for payload in sent:
        own.send(payload)
    # scapy's ESP in UDP has no room for options.
    if case["udp"] is None:
        with_options(case, own, True)
        for size in (0, 77, 1000):
            sent.append(content(len(sent), size))
            own.send(sent[-1])
        with_options(case, own, False)
    received = black.receive(wanted, len(sent))
    faults, ivs, sequences = [], set(), []
    for (outer, packet, datagram_faults), expected in zip(received, sent):
        faults += check_header(outer) + datagram_faults
        body = raw(packet[ESP])
        sequences.append(int.from_bytes(body[4:8], "big"))
        ivs.add(body[8:16])
        try:
            inner = sa.decrypt(packet)
        except Exception as error:  # pylint: disable=broad-except
            faults.append(f"decrypt: {error!r}")
            continue
        faults += check_inner(case, type(packet)(raw(inner)), expected)
    # In fragments the kernel hands it over, which must not leave at all (RFC 4303 section 3.3.4).
    own.send(MARK * 50)
    if black.receive(lambda frame: frame if MARK in frame else None, 1, 0.1):
        faults.append("a fragment left in clear")
    return {"sent": len(sent), "received": len(received), "faults": faults,
            "distinct_ivs": len(ivs), "sequences": sequences}


def clear(case, payload, number=None, source=None, longer=False, **udp):
    """A datagram of the peer's for the socket, or for that of another case."""
    number = case["number"] if number is None else number
    source = source or case["remote_outer"]
    datagram = UDP(sport=7000 + number, dport=6000 + number, **udp) / Raw(payload)
    if case["outer"] == 4:
        options = [IPOption(OPTIONS[:1])] * 3 if longer else []
        return IP(raw(IP(src=source, dst=case["local_outer"], ttl=33, options=options) / datagram))
    header = IPv6(src=source, dst=case["local_outer"], hlim=33)
    if longer:
        pad = PadN(optdata=b"\0" * 4)
        header = header / IPv6ExtHdrHopByHop(options=[pad]) / IPv6ExtHdrDestOpt(options=[pad])
    return IPv6(raw(header / datagram))


def translated(case, payload):
    """A datagram whose source a NAT changed on the way: its checksum is of another (RFC 3948 3.1.2)."""
    inside = "10.9.8.7" if case["outer"] == 4 else "fd99::7"
    packet = clear(case, payload, source=inside)
    packet.src = case["remote_outer"]
    if case["outer"] == 4:
        del packet.chksum
    return type(packet)(raw(packet))


def good_packets(case):
    """Packets that must reach the socket, and what they carry."""
    payloads = [content(100 + i, size) for i, size in enumerate(SIZES)]
    packets = [clear(case, payload) for payload in payloads]
    more = [content(200 + i, 70 + i) for i in range(3)]
    if case["udp"] is None:
        packets += [clear(case, payload, longer=True) for payload in more]
    else:
        packets += [translated(case, payload) for payload in more[:2]]
        # Zero says that there is no checksum, which only IPv4 allows (RFC 768).
        last = {"chksum": 0} if case["outer"] == 4 else {}
        packets.append(clear(case, more[2], **last))
    return packets, payloads + more


def bad_packets(case, sa, sealed):
    """Packets of which none may reach anybody, by what is wrong with them."""
    ordinary = clear(case, content(7, 77))
    bad = {"replay": [sealed[-1], sealed[0]], "integrity_failed": [], "malformed": []}
    for at in (-1, -10, 17):
        body = bytearray(raw(sa.encrypt(ordinary, seq_num=3000 + at)))
        body[at if at < 0 else len(body) - 24] ^= 0x40
        bad["integrity_failed"].append(type(ordinary)(bytes(body)))
    stranger = association(case, case["spi_in"] ^ 0x00FF0000)
    bad["no_sa_inbound"] = [stranger.encrypt(ordinary, seq_num=1)]
    whole = sa.encrypt(ordinary, seq_num=4000)
    for keep in (8, 12, 23, 31):
        header = whole.copy()
        header.remove_payload()
        if header.version == 4:
            del header.len, header.chksum
        else:
            del header.plen
        bad["malformed"].append(type(whole)(raw(header / Raw(raw(whole[ESP])[:keep]))))
    # To the socket of another case, whose policy asks for another SA.
    bad["policy"] = [sa.encrypt(clear(case, b"other", number=case["other"]), seq_num=4001)]
    bad = {name: [on_wire(case, packet) for packet in packets] for name, packets in bad.items()}
    # Plain ESP for an SA in UDP, and the other way round, on a port that some case here uses.
    whole = sa.encrypt(ordinary, seq_num=4002)
    bad["wrapping"] = [whole if case["udp"] else in_udp(whole, 4500, 4500)]
    bad["datagram"] = []
    for length in (0, 7, 2000) if case["udp"] else ():
        lying = on_wire(case, whole).copy()
        lying[UDP].len = length
        bad["datagram"].append(lying)
    return bad


def opened_by_gateway(plan, case, own, other, black):
    """ESP of our own in, datagrams out of the socket; then the bad ones, of which none may come out."""
    sa = association(case, case["spi_in"])
    packets, payloads = good_packets(case)
    sealed = [sa.encrypt(packet, seq_num=i + 1) for i, packet in enumerate(packets)]
    for packet in sealed:
        black.send(ethernet(plan["black_mac"], on_wire(case, packet)))
    out = []
    try:
        while len(out) < len(payloads):
            out.append(own.recv(65535))
    except TimeoutError:
        pass
    bad = bad_packets(case, sa, sealed)
    for kind in bad.values():
        for packet in kind:
            black.send(ethernet(plan["black_mac"], packet))
    leaked = []
    for sock in (own, other):
        sock.settimeout(0.2)
        try:
            leaked.append(sock.recv(65535).hex())
        except TimeoutError:
            pass
    return {"sent": len(payloads), "received": sum(one in payloads for one in out),
            "in_order": out == payloads, "bad": {name: len(kind) for name, kind in bad.items()},
            "leaked": leaked}


def main():
    plan = json.load(sys.stdin)
    black = Wire(plan["black"])
    findings = {}
    for case in plan["cases"]:
        own = own_socket(plan["namespace"], case)
        other = own_socket(plan["namespace"], case | {"number": case["other"]})
        findings[case["name"]] = {
            "sealed": sealed_by_gateway(case, own, black),
            "opened": opened_by_gateway(plan, case, own, other, black),
        }
        own.close(), other.close()
    json.dump(findings, sys.stdout)


main()
