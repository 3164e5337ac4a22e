"""What an IKE daemon is to a gateway: one socket that asks, one that listens, for as long as it lives.

Runs under `peregrine exec` and is never told that a gateway died. Asks the size of the SAD without
a pause, and answers each line of standard input with what it met: {asked, refused, slowest_ms,
overruns, broken, waits}. A wait is a call that gave up after its time, because the gateway was still
not back; daemons try again.
"""

import json
import select
import socket
import struct
import sys
import threading
import time

NETLINK_XFRM = 6
NLM_F_REQUEST, NLM_F_ACK = 1, 4
GETSADINFO, NEWSADINFO = 0x23, 0x22
ENOBUFS = 105
GROUPS = 0x3  # ACQUIRE and EXPIRE, as charon listens to.

met = {"asked": 0, "refused": [], "slowest_ms": 0.0, "overruns": 0, "broken": [], "waits": 0,
       "listens": False}


def ask():
    asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_XFRM)
    sequence = 0
    while True:
        sequence += 1
        start = time.monotonic()
        try:
            asking.send(struct.pack("=IHHIII", 20, GETSADINFO, NLM_F_REQUEST, sequence, 0, 0))
            reply = asking.recv(65536)
            kind, got = struct.unpack("=4xH2xI", reply[:12])
            if (kind, got) != (NEWSADINFO, sequence):
                met["refused"].append([kind, got, sequence])
        except ConnectionRefusedError:
            met["waits"] += 1
        except OSError as error:
            met["refused"].append(str(error))
        met["asked"] += 1
        met["slowest_ms"] = max(met["slowest_ms"], (time.monotonic() - start) * 1000)
        time.sleep(0.002)


def listen():
    listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_XFRM)
    listening.bind((0, GROUPS))
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    while met["asked"] == 0:
        time.sleep(0.01)
    met["listens"] = True
    while True:
        poll.poll()
        try:
            listening.recv(65536, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno == ENOBUFS:
                met["overruns"] += 1
            elif isinstance(error, ConnectionRefusedError):
                met["waits"] += 1
            elif not isinstance(error, BlockingIOError):
                met["broken"].append(str(error))


for loop in (ask, listen):
    threading.Thread(target=loop, daemon=True).start()
for line in sys.stdin:
    print(json.dumps(met), flush=True)
