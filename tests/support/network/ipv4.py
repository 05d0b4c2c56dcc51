"""Packets as a TUN device with a virtio header gives them, made and judged independently of the code under test."""

from __future__ import annotations

import struct
from dataclasses import dataclass

NEEDS_CHECKSUM, TCP_SEGMENTS, UDP_SEGMENTS = 1, 1, 5


def ones_sum(data: bytes) -> int:
    """The folded one's-complement sum of 16-bit words (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def host(index: int) -> bytes:
    return bytes((10, 77, 0, index + 1))


@dataclass(frozen=True, kw_only=True)
class Made:
    """What ``super_packet`` shall make."""

    source: int = 0
    target: int = 1
    protocol: int = 6
    ports: tuple[int, int] = (4000, 5000)
    payload: bytes = b"x"
    mss: int = 1448
    sequence: int = 7
    flags: int = 0x19  # FIN, PSH, ACK
    options: bytes = b"\x01" * 12
    identification: int = 65533


def packet(made: Made) -> bytes:
    """A TCP or UDP packet with an open checksum; a super-packet if the payload is longer than ``mss``."""
    if made.protocol == 6:
        words = (20 + len(made.options)) // 4
        head = struct.pack("!HHIIBBHHH", *made.ports, made.sequence, 99, words << 4, made.flags, 500, 0, 0) + made.options
        place, offset = 16, 16
    else:
        head = struct.pack("!HHHH", *made.ports, 8 + len(made.payload), 0)
        place, offset = 6, 6
    length = len(head) + len(made.payload)
    pseudo = host(made.source) + host(made.target) + struct.pack("!BBH", 0, made.protocol, length)
    head = head[:place] + struct.pack("!H", ones_sum(pseudo)) + head[place + 2 :]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, made.identification, 0x4000, 64, made.protocol, 0)
    ip += host(made.source) + host(made.target)
    ip = ip[:10] + struct.pack("!H", ~ones_sum(ip) & 0xFFFF) + ip[12:]
    several = len(made.payload) > made.mss
    kind = (TCP_SEGMENTS if made.protocol == 6 else UDP_SEGMENTS) if several else 0
    size = made.mss if several else 0
    return struct.pack("=BBHHHH", NEEDS_CHECKSUM, kind, 64 if several else 0, size, 20, offset) + ip + head + made.payload


def plain(size: int = 1000, source: int = 0, target: int = 1) -> bytes:
    """A packet of ``size`` IP bytes that is one packet on the wire."""
    return packet(Made(source=source, target=target, payload=b"x" * (size - 52), mss=65535))


def finished(data: bytes) -> bytes:
    """The IPv4 packet as it leaves a network card: with its transport checksum filled in."""
    ip = bytearray(data[10:])
    protocol = ip[9]
    place = 20 + (16 if protocol == 6 else 6)
    struct.pack_into("!H", ip, place, ~ones_sum(bytes(ip[20:])) & 0xFFFF)
    return bytes(ip)


def checksums_hold(ip: bytes) -> bool:
    """Whether IP and transport checksum of a finished packet are right."""
    pseudo = ip[12:20] + struct.pack("!BBH", 0, ip[9], len(ip) - 20)
    return ones_sum(ip[:20]) == 0xFFFF and ones_sum(pseudo + ip[20:]) == 0xFFFF
