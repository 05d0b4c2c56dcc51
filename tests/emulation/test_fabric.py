"""The network in virtual time: rates, latency, order, queues, loss, caps, partitions, NAT, and bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.emulation.fabric import Fabric, FabricConfig, Hop
from farflung.emulation.packets import segments_of
from tests.support.network.ipv4 import Made, checksums_hold, finished, packet, plain

PAIR = [[0, 1]]


def fabric(nodes: int = 2, framing: int = 0, **values: object) -> Fabric:
    made = Fabric(FabricConfig(nodes=nodes, framing=framing))
    if values:
        made.change({"links": PAIR, "set": values})
    return made


def drain(made: Fabric) -> list[tuple[float, int, bytes]]:
    """(moment, target, packet) of all that is under way, at the moments when it is due."""
    arrived = []
    while (due := made.next_due) < float("inf"):
        arrived += [(due, path.target, data) for path, data in made.release(due)]
    return arrived


def test_latency_and_rate():
    made = fabric(rate=1000.0, delay=0.25, queue=10.0)
    for _ in range(3):
        made.enter(0.0, 0, plain(500))
    assert [moment for moment, _, _ in drain(made)] == pytest.approx([0.75, 1.25, 1.75])
    assert made.held == 0


def test_nothing_is_released_early():
    made = fabric(delay=0.25)
    made.enter(0.0, 0, plain())
    assert made.release(0.2499) == []
    assert len(made.release(0.25)) == 1


def test_framing_is_charged_for_each_packet_of_a_super_packet():
    made = fabric(rate=1e6, framing=14)
    whole = packet(Made(payload=b"x" * 10_000, mss=1000))
    made.enter(0.0, 0, whole)
    expected = 10_000 + 10 * (52 + 14)
    assert max(moment for moment, _, _ in drain(made)) == pytest.approx(expected / 1e6)
    assert made.paths[0][1].bytes == 10_000 + 10 * 52
    assert made.paths[0][1].packets == 10


def test_a_burst_longer_than_a_millisecond_is_cut_and_a_short_one_passes_whole():
    whole = packet(Made(payload=b"x" * 10_000, mss=1000))
    slow = fabric(rate=1e6, queue=1.0)
    slow.enter(0.0, 0, whole)
    pieces = [data for _, _, data in drain(slow)]
    assert all(segments_of(data)[0] == 1 for data in pieces)
    assert b"".join(data[62:] for data in pieces) == b"x" * 10_000
    fast = fabric(rate=1e8)
    fast.enter(0.0, 0, whole)
    assert [data for _, _, data in drain(fast)] == [whole]


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(60, 1500), min_size=1, max_size=60), rate=st.integers(10_000, 10_000_000))
def test_a_busy_link_carries_exactly_its_rate(sizes, rate):
    made = fabric(rate=float(rate), queue=1e9)
    for size in sizes:
        made.enter(0.0, 0, plain(size))
    arrived = drain(made)
    assert len(arrived) == len(sizes)
    assert arrived[-1][0] == pytest.approx(sum(sizes) / rate)


@settings(max_examples=50)
@given(
    times=st.lists(st.floats(0, 5), min_size=1, max_size=50),
    jitter=st.floats(0, 0.5),
    rate=st.sampled_from([0.0, 20_000.0]),
)
def test_nothing_overtakes_and_nothing_comes_before_its_latency(times, jitter, rate):
    made = fabric(rate=rate, delay=0.1, jitter=jitter, queue=100.0)
    for number, moment in enumerate(sorted(times)):
        made.enter(moment, 0, packet(Made(payload=number.to_bytes(4, "big"))))
    arrived = drain(made)
    assert [int.from_bytes(data[-4:], "big") for _, _, data in arrived] == list(range(len(times)))
    late = [moment - sent for (moment, _, _), sent in zip(arrived, sorted(times), strict=True)]
    assert min(late) >= 0.1 - 1e-9
    if not rate:
        assert max(late) <= 0.1 + jitter + 1e-9 or len(times) > 1


def test_a_full_queue_drops_and_the_counters_say_so():
    made = fabric(rate=1000.0, queue=0.5)
    for _ in range(5):
        made.enter(0.0, 0, plain(500))
    counters = made.counters(0, 0.0)[0]
    assert counters["dropped"] == 3, "one on the wire, one that waits half a second"
    assert counters["queued_seconds"] == pytest.approx(1.0)
    assert len(drain(made)) == 2
    assert made.counters(0, 9.0)[0]["queued_seconds"] == 0.0


def test_memory_is_bounded_for_each_pair_and_in_all():
    config = FabricConfig(nodes=3, held_limit=10_000, total_limit=15_000)
    made = Fabric(config)
    made.change({"links": [[0, 1], [0, 2]], "set": {"delay": 1.0}})
    for _ in range(20):
        made.enter(0.0, 0, plain(1000))
        made.enter(0.0, 0, plain(1000, target=2))
        assert made.paths[0][1].held <= 10_000
        assert made.held <= 15_000
    assert made.paths[0][1].dropped + made.paths[0][2].dropped > 20
    drain(made)
    assert made.held == 0


def test_the_number_of_packets_under_way_is_bounded_too():
    made = Fabric(FabricConfig(nodes=2, entries=5))
    made.change({"links": PAIR, "set": {"delay": 1.0}})
    for _ in range(8):
        made.enter(0.0, 0, plain(60))
    assert made.paths[0][1].dropped == 3
    assert len(drain(made)) == 5


def test_caps_are_shared_by_all_pairs_of_a_node():
    made = Fabric(FabricConfig(nodes=3, framing=0))
    made.change({"nodes": [0], "set": {"up_rate": 1000.0, "queue": 100.0}})
    for _ in range(5):
        made.enter(0.0, 0, plain(500))
        made.enter(0.0, 0, plain(500, target=2))
    assert drain(made)[-1][0] == pytest.approx(5.0)


def test_the_downlink_is_shared_in_order_of_arrival():
    made = Fabric(FabricConfig(nodes=3, framing=0))
    made.change({"nodes": [1], "set": {"down_rate": 1000.0, "queue": 100.0}})
    made.change({"links": [[2, 1]], "set": {"delay": 0.1}})
    made.enter(0.0, 0, plain(500))
    made.enter(0.0, 2, plain(500, source=2))
    arrived = drain(made)
    assert [moment for moment, _, _ in arrived] == pytest.approx([0.5, 1.0])
    assert [data[10 + 15] for _, _, data in arrived] == [1, 3]


def test_a_full_downlink_drops():
    made = fabric()
    made.change({"nodes": [1], "set": {"down_rate": 1000.0, "queue": 0.2}})
    for _ in range(4):
        made.enter(0.0, 0, plain(500))
    assert len(drain(made)) == 1
    assert made.paths[0][1].dropped == 3
    assert made.held == 0


def test_loss_is_of_single_packets_also_inside_super_packets():
    made = fabric(loss=0.1)
    for _ in range(200):
        made.enter(0.0, 0, packet(Made(payload=b"x" * 20_000, mss=1000)))
    path = made.paths[0][1]
    arrived = drain(made)
    assert path.lost + path.packets == 4000
    assert 320 <= path.lost <= 480, "0.1 of 4000, four standard deviations"
    assert all(checksums_hold(finished(data)) for _, _, data in arrived)
    assert len(arrived) > 200, "a loss does not take its whole super-packet along"


def test_loss_of_plain_packets():
    made = fabric(loss=0.5)
    for _ in range(1000):
        made.enter(0.0, 0, plain(100))
    assert 420 <= made.paths[0][1].lost <= 580
    made.change({"links": PAIR, "set": {"loss": 1.0}})
    before = made.paths[0][1].lost
    made.enter(0.0, 0, packet(Made(payload=b"x" * 3000)))
    assert made.paths[0][1].lost == before + 3


def test_the_same_seed_loses_the_same():
    lost = []
    for seed in (1, 1, 2):
        made = Fabric(FabricConfig(nodes=2, seed=seed))
        made.change({"links": PAIR, "set": {"loss": 0.5}})
        kept = []
        for number in range(50):
            made.enter(0.0, 0, packet(Made(payload=bytes([number]))))
        kept = [data[-1] for _, _, data in drain(made)]
        lost.append(kept)
    assert lost[0] == lost[1] != lost[2]


def test_damage_is_counted_and_arrives():
    made = fabric(corrupt=1.0)
    sent = packet(Made(payload=bytes(50)))
    made.enter(0.0, 0, sent)
    ((_, _, got),) = drain(made)
    assert got != sent
    assert made.paths[0][1].damaged == 1


def test_partitions_and_links_that_are_down_refuse_independently():
    made = fabric(up=False)
    made.enter(0.0, 0, plain())
    made.change({"links": PAIR, "set": {"cut": True}})
    made.change({"links": PAIR, "set": {"up": True}})
    made.enter(0.0, 0, packet(Made(payload=b"x" * 3000)))
    assert made.paths[0][1].refused == 4
    made.change({"links": PAIR, "set": {"cut": False}})
    made.enter(0.0, 0, plain())
    assert len(drain(made)) == 1


def test_nat_lets_answers_in():
    made = Fabric(FabricConfig(nodes=3))
    made.change({"nodes": [1], "set": {"nat": "home"}})
    there, back = Made(ports=(1, 2)), Made(source=1, target=0, ports=(2, 1))
    made.enter(0.0, 0, packet(there))
    assert drain(made) == []
    made.enter(0.0, 1, packet(back))
    made.enter(0.0, 0, packet(there))
    assert len(drain(made)) == 2
    made.change({"reset": True})
    made.enter(0.0, 0, packet(there))
    assert drain(made) == [], "a restarted router has forgotten the flow"
    made.change({"nodes": [0], "set": {"nat": "home"}})
    made.enter(0.0, 0, packet(there))
    assert len(drain(made)) == 1, "behind the same NAT"
    made.change({"nodes": [0], "set": {"nat": "office"}})
    made.enter(0.0, 0, packet(there))
    assert drain(made) == [], "behind two NATs: one alone can't begin"
    made.enter(0.0, 1, packet(back))
    assert len(drain(made)) == 1, "the other has sent first: the hole is punched"
    made.change({"nodes": [0, 1], "set": {"nat": ""}})
    made.enter(0.0, 2, plain(source=2))
    assert len(drain(made)) == 1


def test_a_reset_loses_what_is_under_way():
    made = fabric(delay=1.0)
    made.enter(0.0, 0, plain())
    made.change({"reset": True})
    assert drain(made) == []
    assert (made.held, made.paths[0][1].held, made.paths[0][1].dropped) == (0, 0, 1)


def test_the_timeline_changes_in_time():
    made = fabric()
    made.at(2.0, {"links": PAIR, "set": {"delay": 0.5}})
    made.at(1.0, {"links": PAIR, "set": {"delay": 0.25}})
    assert made.next_due == 1.0
    delays = []
    for moment in (0.5, 1.0, 2.0):
        made.release(moment)
        delays.append(made.paths[0][1].delay)
    assert delays == [0.0, 0.25, 0.5]
    assert made.next_due == float("inf")


def test_unknown_settings_are_errors():
    with pytest.raises(KeyError, match="speed"):
        fabric(speed=1)
    with pytest.raises(KeyError, match="speed"):
        fabric().change({"nodes": [0], "set": {"speed": 1}})


@pytest.mark.parametrize("data", [b"", bytes(9), bytes(10) + b"\x60" + bytes(60), plain(target=200), plain(target=0)])
def test_strays_are_counted_and_go_nowhere(data):
    made = fabric()
    made.enter(0.0, 0, data)
    assert made.strays == 1
    assert drain(made) == []


def test_a_hop_without_rate_holds_nothing_back():
    assert Hop().through(3.0, 10**9) == 3.0
