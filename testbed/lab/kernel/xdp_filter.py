"""Random loss of what arrives at a switch's interface, by an XDP program.

Open vSwitch's userspace datapath receives through a packet socket. That socket gets its copy of a
packet before any netfilter or traffic-control hook sees it; only XDP runs still earlier, and before
the kernel's datapath, too. The program has some eighty instructions, so it is written here in the
kernel's own format (linux/bpf.h) and needs no compiler. Loading it needs real root.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import socket
import struct

from testbed.lab.kernel.commands import CommandError
from testbed.lab.loss_model import LARGEST_CONTROL_PACKET_BYTES, Losses, LossModel

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 1, 2, 5, 28
_MAP_TYPE_ARRAY, _PROG_TYPE_XDP, _ATTACH_XDP, _XDP_SKB_MODE = 2, 6, 37, 1 << 1
_XDP_DROP, _XDP_PASS = 1, 2
_HELPER_LOOKUP, _HELPER_RANDOM = 1, 7

# The map has two values of 64-bit words at these offsets. This process writes the first, which also
# holds the model's state; thresholds are out of 2^32, and ports from 0 on are all of IPv4. Only the
# program writes the second, so that no count is lost.
_ENTER, _LEAVE, _LOSS_GOOD, _LOSS_BAD, _LOW, _HIGH, _BAD = range(0, 56, 8)
_MET, _DROPPED = range(0, 16, 8)
_VALUE = struct.Struct("=7Q")
_SETTINGS, _COUNTERS = 0, 1


class _Assembler:
    """Assembles eBPF instructions, with labels for jumps (which only go forward)."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int, int | str, int]] = []
        self._labels: dict[str, int] = {}

    def add(
        self, opcode: int, to: int = 0, by: int = 0, offset: int | str = 0, value: int = 0
    ) -> None:
        """One instruction: operation, target and source register, offset (or label), constant."""
        self._code.append((len(self._code), opcode, to, by, offset, value))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assemble(self) -> bytes:
        program = b""
        for place, opcode, to, by, offset, value in self._code:
            jump = self._labels[offset] - place - 1 if isinstance(offset, str) else offset
            program += struct.pack("=BBhi", opcode, by << 4 | to, jump, value)
        return program


# Opcodes: class | size or source | operation.
_LOAD8, _LOAD16, _LOAD32, _LOAD64 = 0x71, 0x69, 0x61, 0x79
_STORE64, _STORE32_CONST, _ATOMIC_ADD64, _LOAD_MAP = 0x7B, 0x62, 0xDB, 0x18
_MOVE, _MOVE_CONST, _ADD_CONST, _SHIFT_LEFT, _SHIFT_RIGHT, _BIG_ENDIAN = (
    0xBF, 0xB7, 0x07, 0x67, 0x77, 0xDC,
)  # fmt: skip
_JUMP, _IF_EQUAL, _IF_NOT_EQUAL, _IF_AT_MOST = 0x05, 0x15, 0x55, 0xB5
_IF_MORE_REG, _IF_AT_LEAST_REG, _CALL, _EXIT = 0x2D, 0x3D, 0x85, 0x95


def _program(map_descriptor: int) -> bytes:
    """Lose a packet or pass it on. Registers: r6 counters, r7 packet, r9 settings."""
    code = _Assembler()
    code.add(_LOAD32, 7, 1, 0)  # data
    code.add(_LOAD32, 8, 1, 4)  # data_end
    code.add(_MOVE, 2, 7)
    code.add(_ADD_CONST, 2, value=38)  # Ethernet, IPv4 without options, ports
    code.add(_IF_MORE_REG, 2, 8, "pass")
    for register, key in ((9, _SETTINGS), (6, _COUNTERS)):
        code.add(_STORE32_CONST, 10, 0, -4, key)
        code.add(_MOVE, 2, 10)
        code.add(_ADD_CONST, 2, value=-4)
        code.add(_LOAD_MAP, 1, 1, 0, map_descriptor)
        code.add(0)  # second half of a 64-bit constant
        code.add(_CALL, value=_HELPER_LOOKUP)
        code.add(_IF_EQUAL, 0, 0, "pass", 0)
        code.add(_MOVE, register, 0)
    code.add(_LOAD64, 2, 9, _LOW)
    code.add(_LOAD64, 3, 9, _HIGH)
    code.add(_IF_EQUAL, 3, 0, "pass", 0)  # nothing is to be lost
    code.add(_LOAD16, 1, 7, 12)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_NOT_EQUAL, 1, 0, "pass", 0x0800)
    code.add(_IF_EQUAL, 2, 0, "draw", 0)
    code.add(_LOAD8, 1, 7, 23)
    code.add(_IF_EQUAL, 1, 0, "length", socket.IPPROTO_UDP)
    code.add(_IF_NOT_EQUAL, 1, 0, "pass", socket.IPPROTO_TCP)
    code.label("length")
    code.add(_LOAD16, 1, 7, 16)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_AT_MOST, 1, 0, "pass", LARGEST_CONTROL_PACKET_BYTES)
    code.add(_LOAD16, 1, 7, 34)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_MORE_REG, 2, 1, "target port")
    code.add(_IF_AT_LEAST_REG, 3, 1, "draw")
    code.label("target port")
    code.add(_LOAD16, 1, 7, 36)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_MORE_REG, 2, 1, "pass")
    code.add(_IF_MORE_REG, 1, 3, "pass")
    code.label("draw")
    code.add(_MOVE_CONST, 1, value=1)
    code.add(_ATOMIC_ADD64, 6, 1, _MET)
    for register in (7, 8):  # one lot for the change of state, one for the loss
        code.add(_CALL, value=_HELPER_RANDOM)
        code.add(_MOVE, register, 0)
        code.add(_SHIFT_LEFT, register, value=32)
        code.add(_SHIFT_RIGHT, register, value=32)
    code.add(_LOAD64, 1, 9, _BAD)
    code.add(_IF_NOT_EQUAL, 1, 0, "bad", 0)
    code.add(_LOAD64, 2, 9, _LOSS_GOOD)
    code.add(_LOAD64, 3, 9, _ENTER)
    code.add(_MOVE_CONST, 4, value=1)
    code.add(_JUMP, offset="apply")
    code.label("bad")
    code.add(_LOAD64, 2, 9, _LOSS_BAD)
    code.add(_LOAD64, 3, 9, _LEAVE)
    code.add(_MOVE_CONST, 4, value=0)
    code.label("apply")
    code.add(_IF_AT_LEAST_REG, 7, 3, "loss")
    code.add(_STORE64, 9, 4, _BAD)
    code.label("loss")
    code.add(_IF_AT_LEAST_REG, 8, 2, "pass")
    code.add(_MOVE_CONST, 1, value=1)
    code.add(_ATOMIC_ADD64, 6, 1, _DROPPED)
    code.add(_MOVE_CONST, 0, value=_XDP_DROP)
    code.add(_EXIT)
    code.label("pass")
    code.add(_MOVE_CONST, 0, value=_XDP_PASS)
    code.add(_EXIT)
    return code.assemble()


class XdpFilter:
    """Loses packets that arrive at an interface of the present namespace.

    It stays attached, losing nothing, until the object (or its process) is gone.
    """

    def __init__(self, interface: str) -> None:
        """Raises CommandError where this user may not load programs into the kernel."""
        self._interface = interface
        self._value = ctypes.create_string_buffer(_VALUE.size)
        self._key = ctypes.create_string_buffer(4)
        self._taken = Losses(0, 0)
        self._losing = False
        self._map, loaded = _load()
        index = socket.if_nametoindex(interface)
        self._link = _bpf(
            _LINK_CREATE, struct.pack("=IIII", loaded, index, _ATTACH_XDP, _XDP_SKB_MODE)
        )
        os.close(loaded)  # the link keeps it

    def lose(self, model: LossModel, *, data_ports: tuple[int, int] | None) -> None:
        """Start to lose packets, in the model's good state.

        Args:
            data_ports: the first and the last port whose data is lost; None: all of IPv4 is.

        Raises:
            CommandError: it loses packets already. An interface has room for one program, so two
                impairments would undo each other.
        """
        if self._losing:
            raise CommandError(f"{self._interface}: another impairment loses packets there")
        self._losing = True
        rates = (model.p_good_to_bad, model.p_bad_to_good, model.loss_good, model.loss_bad)
        self._write(*(round(each * (1 << 32)) for each in rates), *(data_ports or (0, 0xFFFF)))

    def clear(self) -> None:
        self._write()
        self._losing = False

    def take(self) -> Losses:
        """What it met and dropped since the last call."""
        self._access(_MAP_LOOKUP, _COUNTERS)
        total = Losses(*_VALUE.unpack(self._value.raw)[:2])
        before, self._taken = self._taken, total
        return Losses(total.met - before.met, total.dropped - before.dropped)

    def _write(self, *words: int) -> None:
        self._value.raw = _VALUE.pack(*words, *[0] * (7 - len(words)))
        self._access(_MAP_UPDATE, _SETTINGS)

    def _access(self, command: int, of: int) -> None:
        self._key.raw = struct.pack("=I", of)
        key, value = ctypes.addressof(self._key), ctypes.addressof(self._value)
        _bpf(command, struct.pack("=IxxxxQQQ", self._map, key, value, 0))


def missing() -> str | None:
    """Why this user or kernel cannot load the program, or None if it can: tries it."""
    try:
        descriptors = _load()
    except CommandError as error:
        return str(error)
    for each in descriptors:
        os.close(each)
    return None


@functools.cache
def filter_at(interface: str) -> XdpFilter:
    """The one filter of an interface of the present namespace, which its impairments share."""
    return XdpFilter(interface)


def _load() -> tuple[int, int]:
    """Descriptors of a map and of a program that reads it."""
    states = _bpf(_MAP_CREATE, struct.pack("=IIII", _MAP_TYPE_ARRAY, 4, _VALUE.size, 2))
    program = ctypes.create_string_buffer(_program(states))
    licence = ctypes.create_string_buffer(b"MIT")
    attributes = struct.pack(
        "=IIQQIIQII", _PROG_TYPE_XDP, (len(program) - 1) // 8, ctypes.addressof(program),
        ctypes.addressof(licence), 0, 0, 0, 0, 0,
    )  # fmt: skip
    try:
        return states, _bpf(_PROG_LOAD, attributes)
    except CommandError:
        os.close(states)
        raise


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise CommandError(f"bpf: unknown system call number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, command, ctypes.byref(buffer), 128))
    if result < 0:
        error = ctypes.get_errno()
        needs = ": loss on a link into a switch needs real root" if error == errno.EPERM else ""
        raise CommandError(f"bpf: {os.strerror(error)}{needs}")
    return result
