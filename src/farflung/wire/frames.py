"""Frames: a small msgpack header and a list of raw byte sections (tensors), with sizes checked before memory is taken.

Layout (little-endian; docs/wire-format.md has the whole of it):

    magic "FFL" 0x1A | version u8 | flags u8 | sections u16 | header bytes u32 | CRC-32 u32       16 bytes
    for each section: length u64, CRC-32 u32 (0 unless flag 1 is set)                              12 bytes each
    header: msgpack [kind, map]
    sections, one after the other

The CRC-32 of the prelude covers its first 12 bytes, the table and the header; nothing is read from a header that fails it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farflung.errors import MemoryExceeded, VersionError, WireError
from farflung.memory_budget import MemoryBudget
from farflung.wire.headers import pack_value, unpack_value

__all__ = [
    "WIRE_VERSION",
    "Buffer",
    "Frame",
    "FrameDecoder",
    "FrameLimits",
    "decode_frame",
    "decode_parts",
    "encode_frame",
    "run_of",
    "uninitialized",
]

WIRE_VERSION = 1
Buffer = bytes | bytearray | memoryview

_MAGIC = b"FFL\x1a"
_PRELUDE = struct.Struct("<4sBBHII")
_ENTRY = struct.Struct("<QI")
_SECTION_CHECKSUMS = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """``kind`` names the message, ``header`` holds plain values (str, int, float, bool, None, bytes, lists, maps with str keys),
    ``sections`` are buffers that travel as they are."""

    kind: str
    header: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[memoryview | bytes, ...] = ()
    #: Bytes on the wire of a frame that was received (0: it was made here).
    nbytes: int = field(default=0, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The most that a receiver takes: bytes of the header, number of sections, bytes of all sections, nesting and items of the
    header."""

    max_header: int = 4 << 20
    max_sections: int = 4096
    max_bytes: int = 4 << 30
    max_depth: int = 16
    max_items: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the prelude and the table say."""

    header_bytes: int
    checksum: int
    flags: int
    count: int
    lengths: tuple[int, ...] = ()
    checksums: tuple[int, ...] = ()


def encode_frame(frame: Frame, *, checksum: bool = True, limits: FrameLimits | None = None) -> list[memoryview | bytes]:
    """The buffers that make up ``frame`` on the wire: one for the head, then each section as it is (no copies).

    ``checksum=False`` leaves out the sections' CRC-32 (for links that check themselves, such as TLS). ``limits`` are the
    receiver's: a frame that it would refuse is refused here.

    Raises:
        WireError: a value of the header is not plain, a section is not one contiguous run of bytes, or a limit is passed.
    """
    limits = limits or FrameLimits()
    sections = [_as_bytes(section, index) for index, section in enumerate(frame.sections)]
    if not isinstance(frame.kind, str):
        raise WireError(f"a frame's kind must be a text, got {frame.kind!r}")
    header = pack_value([frame.kind, dict(frame.header)])
    lengths = [len(section) for section in sections]
    _check_sizes(len(header), len(sections), sum(lengths), limits)
    sums = [zlib.crc32(section) if checksum else 0 for section in sections]
    table = b"".join(_ENTRY.pack(length, check) for length, check in zip(lengths, sums, strict=True))
    start = _PRELUDE.pack(_MAGIC, WIRE_VERSION, _SECTION_CHECKSUMS if checksum else 0, len(sections), len(header), 0)[:12]
    check = zlib.crc32(header, zlib.crc32(table, zlib.crc32(start)))
    return [start + check.to_bytes(4, "little") + table + header, *sections]


def decode_frame(buffer: Buffer, limits: FrameLimits | None = None) -> Frame:
    """Read exactly one frame from ``buffer``; its sections are views of ``buffer`` (no copies).

    Raises:
        WireError: ``buffer`` is truncated, too long, damaged, or passes ``limits``.
        VersionError: the sender speaks another version of this format.
    """
    limits = limits or FrameLimits()
    view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
    head = _read_prelude(view[: _PRELUDE.size], limits)
    start = _PRELUDE.size + head.count * _ENTRY.size + head.header_bytes
    head, kind, header = _read_head(view[:start], head, limits)
    _expect(len(view), start + sum(head.lengths))
    sections = []
    for index, length in enumerate(head.lengths):
        sections.append(_checked_section(view[start : start + length], head, index))
        start += length
    return _received(kind, header, sections, len(view))


def decode_parts(
    buffer: Buffer, kind: str, limits: FrameLimits | None = None
) -> tuple[Mapping[str, Any], tuple[memoryview | bytes, ...]]:
    """Return header and sections of the one frame in ``buffer``, which must be of ``kind``.

    Raises:
        WireError: it is of another kind, or as ``decode_frame``.
        VersionError: as ``decode_frame``.
    """
    frame = decode_frame(buffer, limits)
    if frame.kind != kind:
        raise WireError(f"the frame is a {frame.kind!r:.40}")
    return frame.header, frame.sections


def _received(kind: str, header: dict[str, Any], sections: Sequence[memoryview], nbytes: int) -> Frame:
    frame = Frame(kind, header, tuple(sections))
    object.__setattr__(frame, "nbytes", nbytes)  # nobody else has seen the frame yet
    return frame


def run_of(frame: Frame) -> str:
    """Return the run that ``frame`` says it belongs to (empty: none), whether or not its message is well-formed."""
    run = frame.header.get("run")
    return run if isinstance(run, str) else ""


class FrameDecoder:
    """Reads frames from a stream that comes in chunks of any size.

    The head is read first; the memory of a section is taken once its size has passed the limits. After an error the
    decoder stays broken: the stream has lost its place.
    """

    def __init__(self, limits: FrameLimits | Callable[[], FrameLimits] | None = None, budget: MemoryBudget | None = None) -> None:
        """``limits`` may be a function, which is asked at each frame. Sections take their memory from ``budget``."""
        self._budget = budget or MemoryBudget()
        self._limits = limits if callable(limits) else lambda: limits or FrameLimits()
        self._broken = ""
        self._start_frame()

    def _start_frame(self) -> None:
        self._pending = bytearray()
        self._prelude: _Head | None = None
        self._head: tuple[_Head, str, dict[str, Any]] | None = None
        self._sections: list[memoryview] = []
        self._filled = 0

    @property
    def missing(self) -> int:
        """Bytes that the current part (prelude, head or section) still lacks; 0 never occurs between calls of ``feed``."""
        if self._head is not None:
            return len(self._sections[-1]) - self._filled
        wanted = _PRELUDE.size
        if self._prelude is not None:
            wanted += self._prelude.count * _ENTRY.size + self._prelude.header_bytes
        return wanted - len(self._pending)

    @property
    def idle(self) -> bool:
        """Whether the stream stands between two frames."""
        return self._head is None and not self._pending

    def feed(self, chunk: Buffer) -> list[Frame]:
        """Take ``chunk``; return the frames that it completes.

        Raises:
            WireError, VersionError: as ``decode_frame``; every later call raises too.
            MemoryExceeded: the budget has no room for a section.
        """
        view = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
        frames = []
        if self._broken:
            raise WireError(f"this stream broke before: {self._broken}; open a new one")
        try:
            while len(view):
                taken = view[: self.missing]
                view = view[len(taken) :]
                frame = self._take(taken)
                if frame is not None:
                    frames.append(frame)
                    self._start_frame()
        except (WireError, VersionError, MemoryExceeded) as error:
            self._start_frame()
            self._broken = str(error)
            raise
        return frames

    def close(self) -> None:
        """Say that the stream has ended.

        Raises:
            WireError: it ended inside a frame.
        """
        if not self.idle:
            raise WireError(f"truncated frame: the stream ended {self.missing} bytes before the end of a part")

    def _take(self, data: memoryview) -> Frame | None:
        if self._head is None:
            self._pending += data
            return self._take_head() if self.missing == 0 else None
        self._sections[-1][self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        return self._next_section() if self.missing == 0 else None

    def _take_head(self) -> Frame | None:
        if self._prelude is None:
            self._prelude = _read_prelude(memoryview(self._pending), self._limits())
            if self.missing:
                return None
        self._head = _read_head(memoryview(self._pending), self._prelude, self._limits())
        return self._next_section()

    def _next_section(self) -> Frame | None:
        """Open the next section that has bytes, or give the finished frame."""
        assert self._head is not None
        head, kind, header = self._head
        if self._sections:
            _checked_section(self._sections[-1], head, len(self._sections) - 1)
        while len(self._sections) < head.count:
            length = head.lengths[len(self._sections)]
            self._sections.append(uninitialized(length, "a frame", self._budget) if length else memoryview(b""))
            self._filled = 0
            if length:
                return None
            _checked_section(self._sections[-1], head, len(self._sections) - 1)
        return _received(kind, header, self._sections, len(self._pending) + sum(head.lengths))


def _as_bytes(section: memoryview | bytes, index: int) -> memoryview | bytes:
    if isinstance(section, bytes):
        return section
    view = memoryview(section)
    if not view.c_contiguous:
        raise WireError(f"section {index} of a frame is not contiguous; send a contiguous copy")
    return view.cast("B") if view.nbytes else b""


def _check_sizes(header: int, count: int, total: int, limits: FrameLimits) -> None:
    for what, value, limit in (
        ("bytes of header", header, limits.max_header),
        ("sections", count, min(limits.max_sections, 0xFFFF)),
        ("bytes of sections", total, limits.max_bytes),
    ):
        if value > limit:
            raise WireError(f"oversized frame: {value} {what}, the limit is {limit}; send less, or raise the receiver's limit")


def _expect(have: int, need: int) -> None:
    if have < need:
        raise WireError(f"truncated frame: {have} bytes of {need}")
    if have > need:
        raise WireError(f"bad frame: {have - need} bytes follow its end")


def _read_prelude(data: memoryview, limits: FrameLimits) -> _Head:
    if data[:4] != _MAGIC[: len(data)]:
        raise WireError(f"not a frame: it begins with {bytes(data[:4])!r} instead of {_MAGIC!r}")
    if len(data) < _PRELUDE.size:
        raise WireError(f"truncated frame: {len(data)} bytes of {_PRELUDE.size}")
    _, version, flags, count, header_bytes, checksum = _PRELUDE.unpack(data)
    if version != WIRE_VERSION:
        raise VersionError(
            f"the sender speaks version {version} of the wire format, this machine version {WIRE_VERSION}; "
            "install the same farflung on both"
        )
    if flags & ~_SECTION_CHECKSUMS:
        raise WireError(f"bad frame: unknown flags 0x{flags:02x}")
    _check_sizes(header_bytes, count, 0, limits)
    return _Head(header_bytes=header_bytes, checksum=checksum, flags=flags, count=count)


def _read_head(data: memoryview, head: _Head, limits: FrameLimits) -> tuple[_Head, str, dict[str, Any]]:
    table_end = _PRELUDE.size + head.count * _ENTRY.size
    if len(data) < table_end + head.header_bytes:
        raise WireError(f"truncated frame: {len(data)} bytes of {table_end + head.header_bytes}")
    if zlib.crc32(data[_PRELUDE.size :], zlib.crc32(data[:12])) != head.checksum:
        raise WireError("damaged frame: the checksum of its header does not match; the link or the sender corrupts data")
    entries: Sequence[tuple[int, int]] = list(_ENTRY.iter_unpack(data[_PRELUDE.size : table_end]))
    lengths = tuple(length for length, _ in entries)
    _check_sizes(head.header_bytes, head.count, sum(lengths), limits)
    value = unpack_value(data[table_end:], limits.max_depth, limits.max_items)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)):
        raise WireError("bad header: it must be a kind (text) and a map")
    full = _Head(
        header_bytes=head.header_bytes,
        checksum=head.checksum,
        flags=head.flags,
        count=head.count,
        lengths=lengths,
        checksums=tuple(check for _, check in entries),
    )
    return full, value[0], value[1]


def _checked_section(section: memoryview, head: _Head, index: int) -> memoryview:
    expected = head.checksums[index]
    actual = zlib.crc32(section) if head.flags & _SECTION_CHECKSUMS else 0
    if actual != expected:
        raise WireError(f"damaged frame: the checksum of section {index} does not match; the link or the sender corrupts data")
    return section


def uninitialized(length: int, what: str, budget: MemoryBudget, wait: float = 0.0) -> memoryview:
    """Allocate ``length`` bytes for ``what``, aligned for every element type. They return to ``budget`` when they are freed.

    The system provides pages only as bytes are written. ``wait``: as in ``MemoryBudget.reserve``.

    Raises:
        MemoryExceeded: ``budget`` has no room.
    """
    import numpy as np  # here: control messages have no sections, and commands that only send those start without numpy

    budget.reserve(length, what, wait=wait)
    try:
        memory = np.empty(length, np.uint8)
    except MemoryError:
        budget.release(length)
        raise MemoryExceeded(f"{what} needs {length} bytes, which the system does not give: end other programs") from None
    budget.release_with(memory, length)
    return memoryview(memory.data)
