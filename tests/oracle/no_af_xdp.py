"""Runs a program on a kernel without AF_XDP: a seccomp filter answers socket(AF_XDP) as such a
kernel does, with EAFNOSUPPORT, and leaves everything else alone."""

import ctypes
import errno
import os
import struct
import sys

AF_XDP = 44
SYS_SOCKET = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def instruction(code, k, when_true=0, when_false=0):
    return struct.pack("HBBI", code, when_true, when_false, k)


program = b"".join([
    instruction(LOAD, 0),                                # the system call's number
    instruction(JUMP_EQUAL, SYS_SOCKET, 0, 3),
    instruction(LOAD, 16),                               # its first argument
    instruction(JUMP_EQUAL, AF_XDP, 0, 1),
    instruction(RETURN, ERRNO | errno.EAFNOSUPPORT),
    instruction(RETURN, ALLOW),
])
buffer = ctypes.create_string_buffer(program, len(program))


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
filter_ = Filter(len(program) // 8, ctypes.addressof(buffer))
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_)) != 0:
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
