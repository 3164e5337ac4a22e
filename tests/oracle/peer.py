"""The far ends of a gateway under test: raw frames in and out of every interface of a namespace.

The first line of standard input is {"interface": "the gateway's Ethernet address there", …}. Every
further line is a JSON string, a Python expression that is evaluated with this module's functions
and scapy's packets in scope; the answer is one line, {"value": …} or {"error": "…"}. It judges
nothing: what should have happened is the calling test's business.
"""

import collections
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from scapy.layers.inet import (
    ICMP, IP, TCP, UDP, IPOption, IPOption_LSRR, IPOption_NOP, IPOption_RR, IPOption_Router_Alert,
    IPOption_SSRR, IPOption_Timestamp,
)
from scapy.layers.inet6 import (
    ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting, IPv6ExtHdrSegmentRouting, PadN,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw, raw

PATIENCE_S = 8.0
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33
# Received frames that the kernel keeps while Python is busy.
RECEIVE_BUFFER_BYTES = 32 << 20
MARK = b"NUMBER: "


class Wire(threading.Thread):
    """One interface: sends frames, and keeps every frame that arrives."""

    def __init__(self, name, gateway):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.socket = packet_socket(name)
        self.frames = collections.deque()

    def run(self):
        while True:
            try:
                frame = self.socket.recv(65535)
                self.frames.append(frame)
            except OSError:  # The interface went down; it may come up again.
                time.sleep(0.01)

    def take(self):
        return [self.frames.popleft() for _ in range(len(self.frames))]

    @property
    def own(self):
        return self.socket.getsockname()[4]


class Stream(threading.Thread):
    """Numbered packets from 0 on, one per gap, until stopped. `seal` may change at any time."""

    def __init__(self, wire, packet, gap_s, seal):
        super().__init__(daemon=True)
        self.wire, self.gap_s, self.seal = wire, gap_s, seal
        self.bytes = raw(packet / Raw(MARK + bytes(4)))[:-4]
        self.sent, self.stopping = 0, False

    def run(self):
        while not self.stopping:
            packet = self.bytes + struct.pack("!I", self.sent)
            seal = self.seal
            frame = ethernet(self.wire, seal.seal(packet) if seal else packet)
            self.wire.socket.send(frame)
            self.sent += 1
            time.sleep(self.gap_s)


class Sa:
    """ESP in tunnel mode with AES-GCM, 16 bytes of ICV, without extended sequence numbers."""

    def __init__(self, spi, source, destination, key):
        key = bytes.fromhex(key)
        self.spi, self.source, self.destination = spi, source, destination
        self.cipher, self.salt, self.sequence = AESGCM(key[:-4]), key[-4:], 0

    def esp(self, inner, sequence=None):
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        pad = -(len(inner) + 2) % 4
        plain = inner + bytes(range(1, pad + 1)) + bytes([pad, 4 if inner[0] >> 4 == 4 else 41])
        header, iv = struct.pack("!II", self.spi, sequence), struct.pack("!Q", sequence)
        return header + iv + self.cipher.encrypt(self.salt + iv, plain, header)

    def seal(self, inner, sequence=None):
        body = self.esp(bytes(inner), sequence)
        return raw(IP(src=self.source, dst=self.destination, proto=50) / Raw(body))

    def open(self, packet):
        """The inner packet of an IPv4 packet; None if it is not of this SA; fails if not genuine."""
        if packet[9] != 50 or packet[20:24] != struct.pack("!I", self.spi):
            return None
        header, iv, rest = packet[20:28], packet[28:36], packet[36:]
        plain = self.cipher.decrypt(self.salt + iv, rest, header)
        return plain[: -2 - plain[-2]]


WIRES, SAS = {}, {}
STREAM = None


def packet_socket(name):
    raw_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw_socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    raw_socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    raw_socket.bind((name, 0))
    return raw_socket


def ethernet(wire, packet):
    """A frame to the gateway around the bytes of an IP packet, whatever they are."""
    kind = 0x86DD if packet[:1] and packet[0] >> 4 == 6 else 0x0800
    gateway = bytes.fromhex(wire.gateway.replace(":", ""))
    return gateway + wire.own + struct.pack("!H", kind) + packet


def network(frame):
    """The bytes of the IP packet of a frame without padding; None for the kernels' own traffic."""
    kind, packet = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and packet[0] >> 4 == 4:
        return packet[: int.from_bytes(packet[2:4], "big")]
    if kind == b"\x86\xdd":
        # Neighbour discovery and multicast listener reports are not traffic.
        control = packet[6] in (0, 58) and (packet[24] == 0xFF or packet[40] in range(130, 144))
        return None if control else packet[: 40 + int.from_bytes(packet[4:6], "big")]
    return None


def taken(on):
    return [p for p in map(network, WIRES[on].take()) if p is not None]


def clear():
    """Forgets what has arrived so far."""
    for wire in WIRES.values():
        wire.take()


def send(on, *packets):
    """Sends IP packets (scapy or bytes) to the gateway."""
    for packet in packets:
        WIRES[on].socket.send(ethernet(WIRES[on], bytes(packet)))
    return len(packets)


def send_frame(on, frame):
    return WIRES[on].socket.send(bytes(frame))


def arrivals(on, count, patience=PATIENCE_S):
    """The IP packets that arrived, as bytes: at least `count`, unless patience ends before."""
    end, found = time.monotonic() + patience, taken(on)
    while len(found) < count and time.monotonic() < end:
        time.sleep(0.002)
        found += taken(on)
    return found


def forwarded(packet):
    """The bytes of a packet after one hop."""
    packet = bytearray(bytes(packet))
    if packet[0] >> 4 == 6:
        packet[7] -= 1
        return bytes(packet[: 40 + int.from_bytes(packet[4:6], "big")])
    packet[8] -= 1
    end = (packet[0] & 15) * 4
    packet[10:12] = bytes(2)
    total = sum(struct.unpack(f"!{end // 2}H", packet[:end]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    packet[10:12] = struct.pack("!H", ~total & 0xFFFF)
    return bytes(packet[: int.from_bytes(packet[2:4], "big")])


def came_through(on, *packets):
    """Whether exactly these packets arrived, in this order, one hop older."""
    found = arrivals(on, len(packets))
    wanted = [forwarded(packet) for packet in packets]
    return found == wanted or [[p.hex() for p in found], [p.hex() for p in wanted]]


def edit(packet, offset, value):
    """A packet with some bytes replaced; `value` is hexadecimal."""
    packet, value = bytearray(raw(packet)), bytes.fromhex(value)
    packet[offset : offset + len(value)] = value
    return bytes(packet)


def checked(packet):
    """The bytes of an IPv4 packet with its header checksum computed again."""
    packet = bytearray(packet)
    packet[8] = (packet[8] + 1) & 255
    rest = bytes(packet)[int.from_bytes(packet[2:4], "big") :]
    return forwarded(packet) + rest


def sa(name, spi, source, destination, key):
    SAS[name] = Sa(spi, source, destination, key)


def sealed(name, packet, sequence=None):
    return SAS[name].seal(bytes(packet), sequence)


def opened(packet):
    for association in SAS.values():
        inner = association.open(packet)
        if inner is not None:
            return inner
    return None


def start(on, packet, gap_s=0.001, seal=None):
    global STREAM
    STREAM = Stream(WIRES[on], packet, gap_s, seal and SAS[seal])
    STREAM.start()


def reseal(name):
    """The stream goes on under another SA."""
    STREAM.seal = SAS[name]


def sent():
    return STREAM.sent


def stop():
    """Ends the stream; the number of packets sent."""
    STREAM.stopping = True
    STREAM.join()
    return STREAM.sent


def number(packet):
    at = packet.find(MARK)
    return None if at < 0 else int.from_bytes(packet[at + len(MARK) : at + len(MARK) + 4], "big")


def numbers(on, key=None):
    """The numbers of the stream's packets that arrived in clear; or in ESP when `key` is "esp"."""
    packets = taken(on)
    if key == "esp":
        packets = [inner for inner in map(opened, packets) if inner is not None]
    return [n for n in map(number, packets) if n is not None]


def flood(loads, count, senders=1):
    """For each interface that `loads` names, each of its senders sends `count` frames as fast as it
    can, going round the packets. How many frames the interfaces accepted."""
    reader, writer = os.pipe()
    children = []
    for on, packets in loads.items():
        frames = [ethernet(WIRES[on], bytes(packet)) for packet in packets]
        for sender in range(senders):
            child = os.fork()
            if child == 0:
                os.write(writer, struct.pack("!Q", hurl(on, frames, sender, count)))
                os._exit(0)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)
    total = sum(struct.unpack("!Q", os.read(reader, 8))[0] for _ in children)
    os.close(reader), os.close(writer)
    return total


def hurl(on, frames, first, count):
    wire, accepted = packet_socket(on), 0
    for turn in range(first, first + count):
        try:
            wire.send(frames[turn % len(frames)])
            accepted += 1
        except OSError:  # The interface has no room for it.
            pass
    return accepted


def arrived():
    """How many IP packets arrived on all interfaces."""
    return sum(len(taken(on)) for on in WIRES)


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def main():
    for name, gateway in json.loads(sys.stdin.readline()).items():
        WIRES[name] = Wire(name, gateway)
        WIRES[name].start()
    for line in sys.stdin:
        try:
            answer = {"value": plain(eval(json.loads(line), globals()))}  # Our own tests' words.
        except Exception:  # pylint: disable=broad-except
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
