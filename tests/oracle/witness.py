"""Both far ends of a gateway that is killed again and again: sends without a pause, and keeps a record
of everything that arrives.

The first line of standard input is the plan: {red, black: interfaces here; red_mac, black_mac: the
gateway's addresses there; tunnels; pps}. Every further line is a JSON string, a Python expression
that is evaluated here; the answer is one line, {"value": …} or {"error": "…"}. Keys are known here,
so that every packet's authenticity and initialization vector can be looked at. It judges nothing.
"""

import collections
import hashlib
import json
import random
import socket
import struct
import sys
import threading
import time
import traceback

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

GATEWAY, PEER = "192.0.2.1", "192.0.2.2"
OUT, IN = 0x10000, 0x20000
SECRET, OPENED = b"SECRET-CLEAR-TEXT", b"OPENED-BY-TUNNEL"
ETH_P_ALL, SOL_PACKET = 3, 263
PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 6, 23
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
TICK_S = 0.005
# Sealed packets that are kept to be sent again: some seconds of them.
KEPT = 8000


def key(spi):
    return hashlib.sha256(b"%d" % spi).digest()[:20]


def inner(side, tunnel):
    return f"{side}.0.{tunnel >> 8}.{tunnel & 255}"


def install(tunnels):
    """What an IKE daemon would install, as `ip` lines."""
    lines = []
    for n in range(tunnels):
        for spi, src, dst in [(OUT + n, GATEWAY, PEER), (IN + n, PEER, GATEWAY)]:
            lines.append(
                f"xfrm state add src {src} dst {dst} proto esp spi {spi} reqid {n + 1} mode tunnel "
                f"replay-window 128 flag esn aead rfc4106(gcm(aes)) 0x{key(spi).hex()} 128")
        for way, src, dst, a, b in [("out", GATEWAY, PEER, 16, 48), ("fwd", PEER, GATEWAY, 48, 16)]:
            lines.append(
                f"xfrm policy add src {inner(a, n)}/32 dst {inner(b, n)}/32 dir {way} "
                f"tmpl src {src} dst {dst} proto esp reqid {n + 1} mode tunnel")
    return lines


def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def ipv4(source, destination, protocol, payload):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(destination))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(payload):
    return struct.pack("!HHHH", 6000, 7000, 8 + len(payload), 0) + payload


def packet_socket(interface):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    wire.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    wire.bind((interface, 0))
    return wire


def frames(wire):
    """Every frame that arrives, with the time at which the kernel got it."""
    while True:
        try:
            frame, ancillary, _, _ = wire.recvmsg(65535, 64)
        except OSError:
            time.sleep(0.01)
            continue
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
        yield seconds * 10**9 + nanoseconds, frame


def missed(wire):
    return struct.unpack("II", wire.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]


class Witness:
    def __init__(self, plan):
        self.tunnels, self.pps = plan["tunnels"], plan["pps"]
        mac = lambda text: bytes.fromhex(text.replace(":", ""))
        own = mac("02:00:00:00:77:01")
        self.red, self.black = packet_socket(plan["red"]), packet_socket(plan["black"])
        self.to_red = mac(plan["red_mac"]) + own + b"\x08\x00"
        self.to_black = mac(plan["black_mac"]) + own + b"\x08\x00"
        self.cipher = {spi: AESGCM(key(spi)[:16]) for base in (OUT, IN)
                       for spi in range(base, base + self.tunnels)}
        self.next_id = 1
        self.sequence = collections.Counter()
        self.sealed = collections.deque(maxlen=KEPT)
        self.counts = collections.Counter()
        self.pairs = set()
        self.last = {}
        self.esp_times, self.opened_times = [], []
        self.opened = set()
        self.running = False
        for loop in (self.look_black, self.look_red, self.send):
            threading.Thread(target=loop, daemon=True).start()

    def look_black(self):
        for when, frame in frames(self.black):
            if SECRET in frame:
                self.counts["clear"] += 1
            if frame[12:14] != b"\x08\x00" or frame[23] != 50:
                continue
            if frame[26:30] != socket.inet_aton(GATEWAY):
                continue
            spi, sequence = struct.unpack("!II", frame[34:42])
            self.counts["esp"] += 1
            pair = (spi, frame[42:50])
            self.counts["repeated"] += pair in self.pairs
            self.pairs.add(pair)
            self.counts["disorder"] += sequence <= self.last.get(spi, 0)
            self.last[spi] = sequence
            self.counts["false"] += not self.is_authentic(spi, sequence, frame)
            self.esp_times.append(when)

    def is_authentic(self, spi, sequence, frame):
        end = 14 + struct.unpack("!H", frame[16:18])[0]
        aad = struct.pack("!III", spi, 0, sequence)
        try:
            clear = self.cipher[spi].decrypt(key(spi)[16:] + frame[42:50], frame[50:end], aad)
        except (InvalidTag, KeyError):
            return False
        return SECRET in clear

    def look_red(self):
        for when, frame in frames(self.red):
            at = frame.find(OPENED)
            if at < 0:
                continue
            number = frame[at + len(OPENED):][:8]
            self.counts["opened"] += 1
            self.counts["accepted_twice"] += number in self.opened
            self.opened.add(number)
            self.opened_times.append(when)

    def send(self):
        tunnel, due = 0, time.monotonic()
        while True:
            due = max(due + TICK_S, time.monotonic() - 0.1)
            time.sleep(max(0, due - time.monotonic()))
            for _ in range(max(1, int(self.pps * TICK_S)) if self.running else 0):
                tunnel = (tunnel + 1) % self.tunnels
                self.put(self.red, self.clear(tunnel))
                frame = self.seal(tunnel)
                self.sealed.append(frame)
                self.put(self.black, frame)

    def put(self, wire, frame):
        try:
            wire.send(frame)
            self.counts["sent"] += 1
        except OSError:
            self.counts["not_sent"] += 1

    def number(self):
        self.next_id += 1
        return struct.pack("!Q", self.next_id)

    def clear(self, tunnel):
        packet = udp(SECRET + self.number() + b"." * 60)
        return self.to_red + ipv4(inner(16, tunnel), inner(48, tunnel), 17, packet)

    def seal(self, tunnel):
        spi = IN + tunnel
        self.sequence[spi] += 1
        packet = udp(OPENED + self.number() + b"." * 60)
        packet = ipv4(inner(48, tunnel), inner(16, tunnel), 17, packet)
        padding = -(len(packet) + 2) % 4
        packet += bytes(range(1, padding + 1)) + bytes([padding, 4])
        iv = struct.pack("!Q", self.next_id)
        aad = struct.pack("!III", spi, 0, self.sequence[spi])
        sealed = self.cipher[spi].encrypt(key(spi)[16:] + iv, packet, aad)
        esp = struct.pack("!II", spi, self.sequence[spi]) + iv + sealed
        return self.to_black + ipv4(PEER, GATEWAY, 50, esp)

    def start(self):
        self.running = True

    def replay(self):
        """Sends again what was sealed until now, in a random order; how many."""
        old = list(self.sealed)
        random.shuffle(old)
        for frame in old:
            self.put(self.black, frame)
            if self.counts["sent"] % 64 == 0:
                time.sleep(0.001)
        return len(old)

    def report(self):
        lost = missed(self.red) + missed(self.black)
        self.counts["missed"] += lost
        return {name: self.counts[name] for name in
                ["sent", "not_sent", "esp", "clear", "repeated", "disorder", "false", "opened",
                 "accepted_twice", "missed"]} | {"pairs": len(self.pairs)}

    def around(self, start, times):
        """The last time before `start` and the first after it, in nanoseconds."""
        times = list(times)
        before = next((t for t in reversed(times) if t < start), None)
        after = next((t for t in times if t > start), None)
        return [before, after]


def main():
    plan = json.loads(sys.stdin.readline())
    witness = Witness(plan)
    scope = {"w": witness, "install": install}
    for line in sys.stdin:
        try:
            answer = {"value": eval(json.loads(line), scope)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


main()
