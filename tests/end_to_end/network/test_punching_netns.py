"""Two workers behind NATs of their own, with the real commands: they connect to each other, and a break costs time only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farflung.emulation.nat_network import BROKER, NatNetwork, missing_programs
from farflung.nat_types import NatType
from farflung.telemetry import RunFolder
from tests.support.network.nat_cluster import Cluster

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0 or bool(missing_programs()), reason="needs root, iproute2 and nftables"),
]


@contextmanager
def cluster(place: Path, *ipv6: str, **devices: NatType) -> Iterator[Cluster]:
    with ExitStack() as stack:
        network = stack.enter_context(NatNetwork(devices, ipv6))
        made = Cluster(place, network, *devices)
        for program in [*made.workers.values(), made.broker]:
            stack.callback(program.ends)
            stack.callback(program.process.terminate)
        yield made


@pytest.mark.timeout(300)
def test_two_workers_behind_nat_train_bit_for_bit_without_a_relay(tmp_path: Path) -> None:
    with cluster(tmp_path, a=NatType.PORT_RESTRICTED, b=NatType.PORT_RESTRICTED) as made:
        text = made.submit(steps=2, workers=2).ends_cleanly(0)
        assert "behind NATs, and connected directly by hole punching: a and b" in text
        assert RunFolder(made.folder).read_relayed() == []
        assert made.is_exact()
        doctor = made.start("a", "doctor", "doctor", "--broker", f"{BROKER}:7000")
        doctor.until("ok +NAT +port-restricted NAT: connects directly, except to machines behind a symmetric NAT")
        doctor.ends()
        status = made.start("", "status", "status", "--home", "broker").ends_cleanly(0)
        assert "port-restricted NAT: connects directly, except to machines behind a symmetric NAT" in status


@pytest.mark.timeout(300)
def test_a_broken_link_is_punched_again_and_the_run_continues(tmp_path: Path) -> None:
    with cluster(tmp_path, a=NatType.PORT_RESTRICTED, b=NatType.PORT_RESTRICTED) as made:
        run = made.submit(steps=600, workers=2)
        run.until(r"step \d+/600")
        made.network.cut("a", "b")
        made.workers["a"].until("link to b: a connection ended")
        made.network.cut("a", "")
        made.workers["a"].until(r"link to b: connected again after \d+\.\d s")
        text = run.ends_cleanly(0)
        assert "attempt 2" not in text
        assert made.is_exact()


@pytest.mark.timeout(300)
def test_a_pair_that_cannot_punch_any_more_gets_a_relay_and_no_step_is_lost(tmp_path: Path) -> None:
    devices = {"a": NatType.PORT_RESTRICTED, "b": NatType.PORT_RESTRICTED, "r": NatType.NONE}
    with cluster(tmp_path, **devices) as made:
        run = made.submit(steps=600, workers=3)
        run.until(r"step \d+/600")
        made.network.cut("a", "b")
        text = run.ends_cleanly(0, 200.0)
        assert "a and b cannot connect directly: their traffic goes through r (" in text
        assert made.is_exact()


@pytest.mark.timeout(300)
def test_two_behind_symmetric_nats_train_bit_for_bit_through_a_third(tmp_path: Path) -> None:
    devices = {"a": NatType.SYMMETRIC, "b": NatType.SYMMETRIC, "r": NatType.NONE}
    with cluster(tmp_path, **devices) as made:
        text = made.submit(steps=2, workers=3).ends_cleanly(0)
        assert "a and b cannot connect directly: their traffic goes through r (" in text
        carried = {(one.source, one.target): one.nbytes for one in RunFolder(made.folder).read_relayed()}
        assert min(carried["a", "b"], carried["b", "a"]) > 1000
        assert made.is_exact()


@pytest.mark.timeout(300)
def test_two_behind_symmetric_nats_connect_over_ipv6(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", a=NatType.SYMMETRIC, b=NatType.SYMMETRIC) as made:
        text = made.submit(steps=2, workers=2).ends_cleanly(0)
        assert "hole punching" not in text
        assert made.is_exact()
        assert RunFolder(made.folder).read_relayed() == []
