"""Devices that share the cores of a host slow each other down, and only while several of them compute."""

from __future__ import annotations

import pytest

from farflung.schedules import Exchange, PipelineTimes, SharedHost, TimedEdge, Transfer, get_schedule, time_schedule, timing
from farflung.schedules.shared_host import ACTION_SECONDS, shared_ends, transfer_work

Hosts = tuple[tuple[float, tuple[int, ...]], ...]


@pytest.fixture
def only_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take no CPU time, so that only the sharing of cores counts."""
    monkeypatch.setattr(timing, "ACTION_SECONDS", 0.0)


def chain(stages: int, hosts: Hosts, wire: float = 0.0) -> PipelineTimes:
    transfer = Transfer(0.0, wire)
    return PipelineTimes(
        forward=[1.0] * stages,
        backward=[2.0] * stages,
        device=list(range(stages)),
        edges=[TimedEdge(source=i, target=i + 1, forward=transfer, backward=transfer) for i in range(stages - 1)],
        update=[0.5] * stages,
        hosts=hosts,
    )


def seconds(times: PipelineTimes, micro_batches: int, schedule: str = "1f1b") -> float:
    orders = get_schedule(schedule).actions(len(times.forward), micro_batches)
    return time_schedule(orders, times).seconds


def test_two_of_three_at_once() -> None:
    host = SharedHost(2.0)
    for device in range(3):
        host.start(0.0, device, 1.0 + device)
    assert host.next_end() == pytest.approx(1.5)
    assert host.end(1.5) == [0]
    assert host.next_end() == pytest.approx(2.5), "two that are left run at full speed"
    host.start(2.0, 0, 0.25)
    assert host.next_end() == pytest.approx(2.0 + 0.25 * 1.5)


def test_those_who_end_together_do_so() -> None:
    host = SharedHost(1.0)
    host.start(1e6, 0, 0.1)
    host.start(1e6, 1, 0.1)
    assert sorted(host.end(host.next_end())) == [0, 1]
    assert host.next_end() == float("inf")


def test_ends_of_actions_that_begin_at_different_times() -> None:
    assert shared_ends(1.0, [0.0, 1.0], [2.0, 1.0]) == pytest.approx([3.0, 3.0])
    assert shared_ends(1.0, [5.0, 0.0], [2.0, 1.0]) == pytest.approx([7.0, 1.0])


@pytest.mark.usefixtures("only_computing")
def test_one_micro_batch_keeps_one_device_busy() -> None:
    """Nobody computes at the same time as another one: sharing costs nothing."""
    assert seconds(chain(3, ()), 1) == seconds(chain(3, ((1.0, (0, 1, 2)),)), 1) == pytest.approx(9.5)


@pytest.mark.usefixtures("only_computing")
def test_a_full_pipeline_is_as_slow_as_its_host() -> None:
    micro_batches = 40
    work = 3 * 3.0 * micro_batches
    assert seconds(chain(3, ((1.0, (0, 1, 2)),)), micro_batches) == pytest.approx(work + 0.5)
    two = seconds(chain(3, ((2.0, (0, 1, 2)),)), micro_batches)
    assert work / 2 <= two <= work / 2 * 1.1
    assert seconds(chain(3, ()), micro_batches) < two


def test_others_are_not_slowed_down() -> None:
    alone = seconds(chain(4, ()), 12)
    assert seconds(chain(4, ((2.0, (0, 1)),)), 12) == alone
    assert seconds(chain(4, ((1.0, (0, 1)),)), 12) > alone


@pytest.mark.usefixtures("only_computing")
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "eager-2"])
@pytest.mark.parametrize("wire", [0.0, 0.7])
def test_a_host_that_has_room_for_all_changes_nothing(schedule: str, wire: float) -> None:
    """The loop with sharing and the loop without agree where sharing costs nothing."""
    apart, together = (seconds(chain(4, hosts, wire), 7, schedule) for hosts in ((), ((4 - 1e-12, (0, 1, 2, 3)),)))
    assert together == pytest.approx(apart)


@pytest.mark.usefixtures("only_computing")
def test_exchanges_of_gradients_follow() -> None:
    def replicas(hosts: Hosts) -> float:
        exchanges = [Exchange(source=a, target=1 - a, transfer=Transfer(0.0, 1.0)) for a in range(2)]
        times = PipelineTimes(forward=[1.0] * 2, backward=[2.0] * 2, device=[0, 1], exchanges=exchanges, hosts=hosts)
        orders = get_schedule("gpipe").actions(1, 2)
        return time_schedule([orders[0], orders[0]], times).seconds

    assert replicas(()) == pytest.approx(7.0)
    assert replicas(((1.0, (0, 1)),)) == pytest.approx(13.0)


def test_commands_are_work_on_shared_cores_only() -> None:
    """Of each forward and each backward; nothing where cores are not shared."""
    alone, shared = (seconds(chain(2, hosts), 1) for hosts in ((), ((1.0, (0, 1)),)))
    assert alone == pytest.approx(6.5)
    assert shared == pytest.approx(alone + 4 * ACTION_SECONDS)


@pytest.mark.usefixtures("only_computing")
def test_transfers_are_work_on_shared_cores_only() -> None:
    """Both ends of both transfers of a micro-batch, forward and backward; nothing where cores are not shared."""

    def timed(hosts: Hosts, nbytes: float) -> float:
        transfer = Transfer(0.0, 0.0, nbytes)
        edges = [TimedEdge(source=0, target=1, forward=transfer, backward=transfer)]
        times = PipelineTimes(forward=[1.0, 1.0], backward=[2.0, 2.0], device=[0, 1], edges=edges, hosts=hosts)
        return seconds(times, 1)

    shared = ((1.0, (0, 1)),)
    assert timed((), 1e6) == timed(shared, 0.0) == pytest.approx(6.0)
    assert timed(shared, 1e6) == pytest.approx(6.0 + 4 * transfer_work(1e6))


def test_a_transfer_between_stages_of_one_device_is_no_work() -> None:
    def timed(nbytes: float) -> float:
        edges = [TimedEdge(source=0, target=1, forward=Transfer(0.0, 0.0, nbytes), backward=None)]
        times = PipelineTimes(forward=[1.0, 1.0], backward=[2.0, 2.0], device=[0, 0], edges=edges, hosts=((0.5, (0, 1)),))
        return seconds(times, 1)

    assert timed(1e6) == timed(0.0)
