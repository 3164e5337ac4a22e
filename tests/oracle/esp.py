"""An independent ESP end point: scapy at both sides of one gateway.

Reads a plan (JSON) on standard input, sends clear packets on the red interface and decrypts what
arrives on the black one, then seals packets of its own, good and bad, sends them on the black
interface and looks at what comes out on the red one. Prints one JSON object with the findings; it
judges nothing but equality of bytes, the calling test does the rest.

Plan: {red, black, red_mac, black_mac, cases: [{name, key, spi_out, spi_in, esn, inner, outer,
local_net, remote_net, local_outer, remote_outer, udp: null or [local port, remote port]}]} with MACs
being the gateway's.
"""

import json
import select
import socket
import sys
import time

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, SecurityAssociation
from scapy.layers.l2 import Ether
from scapy.packet import Raw, raw

SIZES = [0, 1, 2, 3, 4, 15, 16, 17, 63, 64, 100, 491, 1000, 1300]
PATIENCE_S = 3.0
ETH_P_ALL = 3
PACKET_OUTGOING = 4


class Wire:
    """One interface, raw frames in and out."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((name, 0))

    def send(self, frame):
        self.socket.send(frame)

    def receive(self, wanted, count, patience=PATIENCE_S):
        """Up to `count` frames that `wanted` maps to something, within the patience."""
        found = []
        end = time.monotonic() + patience
        while len(found) < count:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                break
            frame, address = self.socket.recvfrom(65535)
            if address[2] == PACKET_OUTGOING:
                continue
            hit = wanted(frame)
            if hit is not None:
                found.append(hit)
        return found

    def drain(self):
        while select.select([self.socket], [], [], 0)[0]:
            self.socket.recv(65535)


def addresses(case, sequence):
    """An inner source and destination in the tunnel's selectors."""
    host = 1 + sequence % 200
    if case["inner"] == 4:
        return case["local_net"] + str(host), case["remote_net"] + str(host)
    return case["local_net"] + format(host, "x"), case["remote_net"] + format(host, "x")


def clear(case, size, sequence, reverse=False, source=None):
    """An inner packet whose UDP payload has `size` bytes."""
    src, dst = addresses(case, sequence)
    if reverse:
        src, dst = dst, src
    src = source or src
    payload = Raw(bytes((sequence * 7 + i) & 0xFF for i in range(size)))
    if case["inner"] == 4:
        return IP(raw(IP(src=src, dst=dst, ttl=33, id=sequence) / UDP(sport=6000, dport=7000) / payload))
    return IPv6(raw(IPv6(src=src, dst=dst, hlim=33) / UDP(sport=6000, dport=7000) / payload))


def forwarded(packet):
    """The same packet after one hop."""
    packet = packet.copy()
    if packet.version == 4:
        packet.ttl -= 1
        del packet.chksum
    else:
        packet.hlim -= 1
    return raw(packet)


def in_udp(packet, source, destination):
    """The ESP packet as payload of a datagram, with scapy's checksum over IPv6."""
    datagram = UDP(sport=source, dport=destination) / Raw(raw(packet[ESP]))
    if packet.version == 4:
        datagram.chksum = 0
        return IP(raw(IP(src=packet.src, dst=packet.dst) / datagram))
    return IPv6(raw(IPv6(src=packet.src, dst=packet.dst) / datagram))


def on_wire(case, packet):
    """A packet of the peer's as it leaves the peer."""
    if case["udp"] is None:
        return packet
    local, remote = case["udp"]
    return in_udp(packet, remote, local)


def check_datagram(case, packet):
    """What is wrong with the UDP header of a packet of the gateway's, or nothing."""
    datagram, faults = packet[UDP], []
    if [datagram.sport, datagram.dport] != case["udp"]:
        faults.append(f"ports {datagram.sport} > {datagram.dport}")
    if datagram.len != len(raw(datagram)):
        faults.append(f"length {datagram.len} of {len(raw(datagram))}")
    copy = packet.copy()
    del copy[UDP].chksum
    expected = 0 if packet.version == 4 else type(packet)(raw(copy))[UDP].chksum
    if datagram.chksum != expected:
        faults.append(f"checksum {datagram.chksum:#x}, not {expected:#x}")
    return faults


def off_wire(case, packet):
    """A packet of the gateway's as plain ESP; nothing if it is none of this case."""
    if case["udp"] is not None:
        if UDP not in packet or packet[UDP].dport != case["udp"][1]:
            return None
        esp = ESP(raw(packet[UDP])[8:])
        kind, field = (IP, {"proto": 50}) if packet.version == 4 else (IPv6, {"nh": 50})
        plain = kind(src=packet.src, dst=packet.dst, **field) / esp
        faults = check_datagram(case, packet)
        ttl = packet.ttl if packet.version == 4 else packet.hlim
        plain = kind(raw(plain))
        if packet.version == 4:
            plain.ttl = ttl
            del plain.chksum
            plain = kind(raw(plain))
        return plain, faults
    return (packet, []) if ESP in packet else None


def association(case, spi, reverse=False):
    here, there = case["local_outer"], case["remote_outer"]
    if reverse:
        here, there = there, here
    header = IP(src=here, dst=there) if case["outer"] == 4 else IPv6(src=here, dst=there)
    return SecurityAssociation(
        ESP, spi=spi, crypt_algo="AES-GCM", crypt_key=bytes.fromhex(case["key"]),
        tunnel_header=header, esn_en=case["esn"], esn=0)


def network(frame):
    """The IP packet of a frame, without Ethernet padding."""
    packet = Ether(frame).payload
    if isinstance(packet, IP):
        return IP(raw(packet)[: packet.len])
    if isinstance(packet, IPv6):
        return IPv6(raw(packet)[: 40 + packet.plen])
    return None


def ethernet(mac, packet):
    kind = 0x0800 if packet.version == 4 else 0x86DD
    return raw(Ether(dst=mac, src="02:00:00:00:00:fe", type=kind)) + raw(packet)


def check_outer(case, packet):
    """What is wrong with the outer header, or nothing."""
    faults = []
    if packet.src != case["local_outer"] or packet.dst != case["remote_outer"]:
        faults.append(f"outer {packet.src} > {packet.dst}")
    if packet.version == 4:
        copy = packet.copy()
        del copy.chksum
        if IP(raw(copy)).chksum != packet.chksum:
            faults.append("outer checksum")
        if packet.ttl < 32:
            faults.append(f"outer ttl {packet.ttl}")
    return faults


def sealed_by_gateway(plan, case, red, black):
    """Clear packets in, ESP out: decrypt and compare."""
    sa = association(case, case["spi_out"])
    sent = [clear(case, size, i) for i, size in enumerate(SIZES)]
    red.drain(), black.drain()

    def wanted(frame):
        packet = network(frame)
        found = None if packet is None else off_wire(case, packet)
        if found is None or found[0][ESP].spi != case["spi_out"]:
            return None
        return packet, *found

    # The first packet makes the kernel resolve the neighbour; it may be lost, and is not one of ours.
    warm = clear(case, 5, 250)
    for _ in range(20):
        red.send(ethernet(plan["red_mac"], warm))
        if black.receive(wanted, 1, 0.2):
            break
    time.sleep(0.1)
    black.drain()
    for packet in sent:
        red.send(ethernet(plan["red_mac"], packet))
    received = black.receive(wanted, len(sent))
    faults, ivs, sequences = [], set(), []
    for (outer, packet, datagram_faults), expected in zip(received, sent):
        faults += check_outer(case, outer) + datagram_faults
        body = raw(packet[ESP])
        sequences.append(int.from_bytes(body[4:8], "big"))
        ivs.add(body[8:16])
        try:
            inner = sa.decrypt(packet)
        except Exception as error:  # pylint: disable=broad-except
            faults.append(f"decrypt: {error!r}")
            continue
        if raw(inner) != forwarded(expected):
            faults.append(f"inner differs: {raw(inner).hex()} != {forwarded(expected).hex()}")
    return {"sent": len(sent), "received": len(received), "faults": faults,
            "distinct_ivs": len(ivs), "sequences": sequences}


def opened_by_gateway(plan, case, red, black):
    """ESP of our own in, clear packets out; then the bad ones, of which none may come out."""
    sa = association(case, case["spi_in"], reverse=True)
    good = [clear(case, size, i, reverse=True) for i, size in enumerate(SIZES)]
    sealed = [sa.encrypt(packet, seq_num=i + 1) for i, packet in enumerate(good)]
    red.drain(), black.drain()
    mine = {forwarded(packet): i for i, packet in enumerate(good)}

    def wanted(frame):
        packet = network(frame)
        return None if packet is None else mine.get(raw(packet))

    # The first packets make the kernel resolve the red neighbour; a copy with a number of its own.
    for number in range(1000, 1020):
        warm = on_wire(case, sa.encrypt(good[0], seq_num=number))
        black.send(ethernet(plan["black_mac"], warm))
        if red.receive(wanted, 1, 0.2):
            break
    time.sleep(0.1)
    red.drain()
    # Start above the warm-up's numbers, inside one window.
    sealed = [sa.encrypt(packet, seq_num=2000 + i) for i, packet in enumerate(good)]
    for packet in sealed:
        black.send(ethernet(plan["black_mac"], on_wire(case, packet)))
    out = red.receive(wanted, len(sealed))

    bad = {"replay": [], "integrity_failed": [], "no_sa_inbound": [], "malformed": [], "selector": []}
    bad["replay"] = [sealed[-1], sealed[0]]
    for at in (-1, -10, 17):
        body = bytearray(raw(sa.encrypt(good[5], seq_num=3000 + at)))
        body[at if at < 0 else len(body) - 24] ^= 0x40
        bad["integrity_failed"].append(type(sealed[0])(bytes(body)))
    stranger = association(case, case["spi_in"] ^ 0x00FF0000, reverse=True)
    bad["no_sa_inbound"] = [stranger.encrypt(good[3], seq_num=1)]
    whole = sa.encrypt(good[5], seq_num=4000)
    for keep in (8, 12, 23, 31):
        body = raw(whole[ESP])[:keep]
        header = whole.copy()
        header.remove_payload()
        if header.version == 4:
            del header.len, header.chksum
            header.proto = 50
        else:
            del header.plen
            header.nh = 50
        bad["malformed"].append(type(whole)(raw(header / Raw(body))))
    outside = "99.99.99.99" if case["inner"] == 4 else "2001:db8:bad::1"
    bad["selector"] = [sa.encrypt(clear(case, 33, 1, reverse=True, source=outside), seq_num=4001)]
    bad = {name: [on_wire(case, packet) for packet in packets] for name, packets in bad.items()}
    # Plain ESP for an SA in UDP, and the other way round, on a port that some case here uses.
    whole = sa.encrypt(good[5], seq_num=4002)
    bad["wrapping"] = [whole if case["udp"] else in_udp(whole, 4500, 4500)]
    bad["datagram"] = []
    if case["udp"]:
        for length in (0, 7, 2000):
            lying = on_wire(case, whole).copy()
            lying[UDP].len = length
            bad["datagram"].append(lying)
    red.drain()
    for packets in bad.values():
        for packet in packets:
            black.send(ethernet(plan["black_mac"], packet))
    leaked = red.receive(lambda f: f if (p := network(f)) is not None and UDP in p else None, 1, 0.3)
    return {"sent": len(good), "received": len(out), "in_order": out == sorted(out),
            "bad": {name: len(packets) for name, packets in bad.items()},
            "leaked": [frame.hex() for frame in leaked]}


def main():
    plan = json.load(sys.stdin)
    red, black = Wire(plan["red"]), Wire(plan["black"])
    findings = {}
    for case in plan["cases"]:
        findings[case["name"]] = {
            "sealed": sealed_by_gateway(plan, case, red, black),
            "opened": opened_by_gateway(plan, case, red, black),
        }
    json.dump(findings, sys.stdout)


if __name__ == "__main__":
    main()
