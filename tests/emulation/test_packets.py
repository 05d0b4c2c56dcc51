"""Super-packets are cut as the kernel's own segmentation would cut them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.emulation.packets import VNET, cut, damage, flow_of, segments_of
from tests.support.network.ipv4 import Made, checksums_hold, finished, packet


@given(
    payload=st.binary(min_size=3, max_size=4000),
    mss=st.integers(1, 700),
    sequence=st.integers(0, 2**32 - 1),
    protocol=st.sampled_from([6, 17]),
    data=st.data(),
)
def test_pieces_are_right_packets_and_together_the_whole(payload, mss, sequence, protocol, data):
    mss = min(mss, len(payload) - 1)
    made = Made(payload=payload, mss=mss, sequence=sequence, flags=0x99, protocol=protocol)
    whole = packet(made)
    segments, header, size = segments_of(whole)
    assert (segments, size) == (-(-len(payload) // mss), mss)
    assert header == (52 if protocol == 6 else 28)
    begin, collected = 0, b""
    while begin < segments:
        count = data.draw(st.integers(1, segments - begin))
        piece = cut(whole, begin, count)
        ip = finished(piece)
        assert len(ip) == struct.unpack_from("!H", ip, 2)[0]
        if count == 1 or len(ip) - header <= mss:
            assert checksums_hold(ip)
            assert segments_of(piece) == (1, 0, 0)
        else:
            assert segments_of(piece) == (count, header, mss)
            assert checksums_hold(ip), "an open checksum over the piece's own length"
        assert struct.unpack_from("!H", ip, 4)[0] == (made.identification + begin) & 0xFFFF
        if protocol == 6:
            assert struct.unpack_from("!I", ip, 24)[0] == (sequence + begin * mss) & 0xFFFFFFFF
            last = begin + count == segments
            assert ip[33] & 0x09 == (0x09 if last else 0), "FIN and PSH belong to the last segment"
            assert ip[33] & 0x80 == (0x80 if begin == 0 else 0), "CWR to the first"
        else:
            assert struct.unpack_from("!H", ip, 24)[0] == len(ip) - 20
        collected += ip[header:]
        begin += count
    assert collected == payload


def test_a_packet_of_one_segment_is_no_super_packet():
    assert segments_of(packet(Made(payload=b"x" * 1448))) == (1, 0, 0)


def test_without_an_open_checksum_nothing_is_cut():
    whole = bytearray(packet(Made(payload=b"x" * 3000)))
    whole[0] = 0
    assert segments_of(bytes(whole)) == (1, 0, 0)


def test_the_congestion_mark_of_the_kind_is_no_part_of_it():
    whole = bytearray(packet(Made(payload=b"x" * 3000)))
    whole[1] |= 0x80
    assert segments_of(bytes(whole)) == (3, 52, 1448)


@given(at=st.integers(0, 10_000), protocol=st.sampled_from([6, 17]))
def test_damage_turns_one_bit_of_the_payload_and_no_checksum_tells(at, protocol):
    whole = packet(Made(payload=bytes(100), protocol=protocol))
    hurt = damage(whole, at)
    header = VNET + (52 if protocol == 6 else 28)
    assert hurt[:header] == whole[:header]
    assert sum((byte).bit_count() for byte in hurt[header:]) == 1
    assert checksums_hold(finished(hurt)), "the receiver's kernel completes it and finds it right"


def test_what_cannot_be_damaged_unnoticed_stays():
    closed = b"\0" + packet(Made())[1:]
    assert damage(closed, 0) is closed
    empty = packet(Made(payload=b""))
    assert damage(empty, 0) == empty


def icmp(kind: int, identifier: int) -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 1, 0, bytes(4), bytes(4))
    return bytes(VNET) + ip + struct.pack("!BBHHH", kind, 0, 0, identifier, 1)


@pytest.mark.parametrize(
    ("data", "flow"),
    [
        (packet(Made(ports=(1, 2))), (6, 1, 2)),
        (packet(Made(ports=(3, 4), protocol=17)), (17, 3, 4)),
        (icmp(8, 77), (1, 77, 77)),
        (icmp(0, 77), (1, 77, 77)),
        (icmp(3, 77), None),
        (packet(Made())[: VNET + 9] + b"\x2f" + packet(Made())[VNET + 10 :], (47, 0, 0)),
        (packet(Made())[: VNET + 6] + b"\x00\x10" + packet(Made())[VNET + 8 :], (6, 0, 0)),
    ],
)
def test_flows(data, flow):
    assert flow_of(data) == flow
