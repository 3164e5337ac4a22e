"""Puts frames on an interface: `inject.py INTERFACE HEX...`."""

import socket
import sys

with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as port:
    port.bind((sys.argv[1], 0))
    for frame in sys.argv[2:]:
        port.send(bytes.fromhex(frame))
