"""Loss of what arrives at a switch's interface, by an XDP program; loading it needs real root.

Open vSwitch's packet socket gets its copy of a packet before any netfilter or traffic-control hook;
only XDP runs still earlier. The program is written in the kernel's own format (linux/bpf.h).
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
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.loss_table import LARGEST_CONTROL_PACKET_BYTES, MOST_PACKETS, Losses, LossTable

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 1, 2, 5, 28
_MAP_TYPE_ARRAY, _PROG_TYPE_XDP, _ATTACH_XDP = 2, 6, 37
# In the driver: the kernel's generic mode passes over packets that were redirected on their way, as
# a switch's are at its port (`testbed.lab.datapath`).
_XDP_DRIVER_MODE = 1 << 2
_XDP_DROP, _XDP_PASS = 1, 2
_HELPER_LOOKUP = 1

# A map's value has 64-bit words at these offsets. This process writes the settings: how many
# packets were met before, after how many the table begins again, and the data ports; from 0 on they
# are all of IPv4, and up to 0 nothing is lost. Only the program writes the counters, so that no
# count is lost. The bits of the table are in a map of their own.
_BEFORE, _PERIOD, _LOW, _HIGH = range(0, 32, 8)
_MET, _DROPPED = range(0, 16, 8)
_VALUE = struct.Struct("=4Q")
_SETTINGS, _COUNTERS = 0, 1
_TABLE_BYTES = MOST_PACKETS // 8


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
_STORE32_CONST, _ATOMIC64, _LOAD_MAP, _FETCH_ADD = 0x62, 0xDB, 0x18, 0x01
_MOVE, _MOVE_CONST, _ADD, _ADD_CONST, _AND_CONST, _MODULO, _BIG_ENDIAN = (
    0xBF, 0xB7, 0x0F, 0x07, 0x57, 0x9F, 0xDC,
)  # fmt: skip
_SHIFT_RIGHT, _SHIFT_RIGHT_REG, _SUBTRACT = 0x77, 0x7F, 0x1F
_JUMP, _IF_EQUAL, _IF_NOT_EQUAL, _IF_AT_MOST = 0x05, 0x15, 0x55, 0xB5
_IF_MORE_REG, _IF_AT_LEAST_REG, _CALL, _EXIT = 0x2D, 0x3D, 0x85, 0x95


def _program(states: int, bits: int) -> bytes:
    """Lose a packet or pass it on. Registers: r6 counters, r7 packet (then index), r9 settings."""
    code = _Assembler()

    def look_up(register: int, descriptor: int, key: int) -> None:
        code.add(_STORE32_CONST, 10, 0, -4, key)
        code.add(_MOVE, 2, 10)
        code.add(_ADD_CONST, 2, value=-4)
        code.add(_LOAD_MAP, 1, 1, 0, descriptor)
        code.add(0)  # second half of a 64-bit constant
        code.add(_CALL, value=_HELPER_LOOKUP)
        code.add(_IF_EQUAL, 0, 0, "pass", 0)
        code.add(_MOVE, register, 0)

    code.add(_LOAD32, 7, 1, 0)  # data
    code.add(_LOAD32, 8, 1, 4)  # data_end
    code.add(_MOVE, 2, 7)
    code.add(_ADD_CONST, 2, value=38)  # Ethernet, IPv4 without options, ports
    code.add(_IF_MORE_REG, 2, 8, "pass")
    look_up(9, states, _SETTINGS)
    look_up(6, states, _COUNTERS)
    code.add(_LOAD64, 2, 9, _LOW)
    code.add(_LOAD64, 3, 9, _HIGH)
    code.add(_IF_EQUAL, 3, 0, "pass", 0)  # nothing is to be lost
    code.add(_LOAD16, 1, 7, 12)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_NOT_EQUAL, 1, 0, "pass", 0x0800)
    code.add(_IF_EQUAL, 2, 0, "count", 0)
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
    code.add(_IF_AT_LEAST_REG, 3, 1, "count")
    code.label("target port")
    code.add(_LOAD16, 1, 7, 36)
    code.add(_BIG_ENDIAN, 1, value=16)
    code.add(_IF_MORE_REG, 2, 1, "pass")
    code.add(_IF_MORE_REG, 1, 3, "pass")
    code.label("count")
    code.add(_MOVE_CONST, 7, value=1)
    code.add(_ATOMIC64, 6, 7, _MET, _FETCH_ADD)
    code.add(_LOAD64, 1, 9, _BEFORE)
    code.add(_SUBTRACT, 7, 1)
    code.add(_LOAD64, 1, 9, _PERIOD)
    code.add(_MODULO, 7, 1)
    look_up(8, bits, 0)
    code.add(_MOVE, 1, 7)
    code.add(_SHIFT_RIGHT, 1, value=3)
    code.add(_AND_CONST, 1, value=_TABLE_BYTES - 1)  # as the kernel wants to see it
    code.add(_ADD, 8, 1)
    code.add(_LOAD8, 2, 8, 0)
    code.add(_AND_CONST, 7, value=7)
    code.add(_SHIFT_RIGHT_REG, 2, 7)
    code.add(_AND_CONST, 2, value=1)
    code.add(_IF_EQUAL, 2, 0, "pass", 0)
    code.add(_MOVE_CONST, 1, value=1)
    code.add(_ATOMIC64, 6, 1, _DROPPED)
    code.add(_MOVE_CONST, 0, value=_XDP_DROP)
    code.add(_EXIT)
    code.label("pass")
    code.add(_MOVE_CONST, 0, value=_XDP_PASS)
    code.add(_EXIT)
    return code.assemble()


class _Attached:
    """The program at an interface of this namespace, until the object or its process is gone."""

    def __init__(self, interface: str) -> None:
        self.losing = False
        self._key = ctypes.create_string_buffer(4)
        self._value = ctypes.create_string_buffer(_VALUE.size)
        self._table = ctypes.create_string_buffer(_TABLE_BYTES)
        self._settings: tuple[int, ...] = (0, 1, 0)
        self._taken = Losses(0, 0)
        self._states, self._bits, loaded = _load()
        index = socket.if_nametoindex(interface)
        self._link = _bpf(
            _LINK_CREATE, struct.pack("=IIII", loaded, index, _ATTACH_XDP, _XDP_DRIVER_MODE)
        )
        os.close(loaded)  # the link keeps it
        with Rtnetlink() as kernel:
            kernel.disable_offloads(interface)  # a veth merges packets from now on, unless told

    def begin(self, table: bytes, period: int, low: int, high: int) -> None:
        """Lose by the bits of a table, from now on counted from 0."""
        self.losing = True
        self._table.raw = table.ljust(_TABLE_BYTES, b"\0")
        self._access(_MAP_UPDATE, self._bits, 0, self._table)
        self._settings = (self._counts().met, period, low)
        # The last port alone says whether anything is lost, so no packet meets half of a change.
        for last in (0, high):
            self._write(*self._settings, last)

    def end(self) -> None:
        self._write(*self._settings, 0)
        self.losing = False

    def take(self) -> Losses:
        total, before = self._counts(), self._taken
        self._taken = total
        return Losses(total.met - before.met, total.dropped - before.dropped)

    def _counts(self) -> Losses:
        self._access(_MAP_LOOKUP, self._states, _COUNTERS, self._value)
        return Losses(*_VALUE.unpack(self._value.raw)[:2])

    def _write(self, *words: int) -> None:
        self._value.raw = _VALUE.pack(*words)
        self._access(_MAP_UPDATE, self._states, _SETTINGS, self._value)

    def _access(self, command: int, of: int, key: int, value: ctypes.Array[ctypes.c_char]) -> None:
        self._key.raw = struct.pack("=I", key)
        places = ctypes.addressof(self._key), ctypes.addressof(value)
        _bpf(command, struct.pack("=IxxxxQQQ", of, *places, 0))


# An interface has room for one program, which its impairments share.
_attached = functools.cache(_Attached)


class XdpFilter:
    """Loses those packets of a table that arrive at an interface of the present namespace."""

    def __init__(self, interface: str, losses: LossTable) -> None:
        """Raises CommandError where this user may not load programs into the kernel."""
        self._interface = interface
        self._losses = losses
        self._program = _attached(interface)

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int = 0) -> None:
        """Start to lose packets of an occurrence on these data ports; None: all of IPv4."""
        # Two filters that lose packets of one interface would undo each other.
        if self._program.losing:
            raise CommandError(f"{self._interface}: another impairment loses packets there")
        self._program.begin(*self._losses.bits(occurrence), *(data_ports or (0, 0xFFFF)))

    def clear(self) -> None:
        self._program.end()

    def take(self) -> Losses:
        """Return what it met and dropped since the last call."""
        return self._program.take()


def missing() -> str | None:
    """Say why this user or kernel cannot load the program, or None; tries it."""
    try:
        descriptors = _load()
    except CommandError as error:
        return str(error)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _load() -> tuple[int, int, int]:
    """Open two maps (settings and counters; the table) and the program: descriptors."""
    made: list[int] = []
    try:
        for value_bytes, entries in ((_VALUE.size, 2), (_TABLE_BYTES, 1)):
            sizes = struct.pack("=IIII", _MAP_TYPE_ARRAY, 4, value_bytes, entries)
            made.append(_bpf(_MAP_CREATE, sizes))
        program = ctypes.create_string_buffer(_program(*made))
        licence = ctypes.create_string_buffer(b"MIT")
        attributes = struct.pack(
            "=IIQQIIQII", _PROG_TYPE_XDP, (len(program) - 1) // 8, ctypes.addressof(program),
            ctypes.addressof(licence), 0, 0, 0, 0, 0,
        )  # fmt: skip
        return made[0], made[1], _bpf(_PROG_LOAD, attributes)
    except CommandError:
        for descriptor in made:
            os.close(descriptor)
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
