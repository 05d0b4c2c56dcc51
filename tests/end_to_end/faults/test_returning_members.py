"""A machine that was rebooted, has another address or another version of farflung is the same member, and its run goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from farflung import __version__
from farflung.cli.cluster.systemd_units import unit_text
from farflung.security import Ticket, new_key
from farflung.telemetry import RecoveryRecord, RunFolder
from farflung.telemetry.records import StepRecord
from farflung.worker import membership
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, _serve, plainly, same, states_of, text_job


def goes_on(cluster: Loopback, act: Callable[[], None], *, after: int = 3, more: int = 3) -> Finished:
    """``act`` happens to the run's only worker in step ``after``; it ends ``more`` steps later, once it has recovered."""
    acted: list[int] = []

    def seen(run: str, record: StepRecord) -> None:
        if record.step == after and not acted:
            acted.append(cluster.broker.runs.live(run).attempt.number)
            act()
        elif acted and record.step >= after + more and cluster.broker.runs.live(run).attempt.number > acted[0]:
            cluster.client.stop(run)
            acted[0] = 1_000_000

    return cluster.run(text_job(steps=1_000_000, checkpoint={"recover_every": 0.0}), anybody=True, on_record=seen)


def check(found: Finished, home: Path) -> None:
    """There was one recovery, no step is missing, and the weights are those of a plain loop."""
    assert found.result.status == "stopped", found.result.cause
    records = list(RunFolder(found.folder).records())
    (recovery,) = [record for record in records if isinstance(record, RecoveryRecord)]
    assert recovery.devices == ("a",)
    assert {record.step for record in found.steps} == set(range(found.result.steps))
    module, _ = plainly(text_job(steps=found.result.steps), home)
    held, tensors = states_of(found), module.state_dict()
    assert held
    assert same(held, {name: tensors[name].detach().numpy() for name in held}) == []


@pytest.mark.timeout(300)
def test_a_machine_that_was_rebooted(home: Path) -> None:
    """The process of its service is killed and started again by the same unit; its ticket has expired meanwhile."""
    with Loopback(home, 0) as cluster:
        kept, ticket = home / "kept.ticket", cluster.ticket("join")
        kept.write_text(str(ticket))
        kept.chmod(0o600)
        words = [str(kept), "--name", "a", "--listen", "127.0.0.1:0", "--data", str(home)]
        lines = unit_text("a", words, home, user=True).splitlines()
        (command,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
        environment = {**os.environ, "FARFLUNG_HOME": str(home / "home")}
        processes: list[subprocess.Popen[bytes]] = []

        def boot() -> None:
            with (home / f"a-{len(processes)}.log").open("wb") as log:
                processes.append(subprocess.Popen(shlex.split(command), stdout=log, stderr=log, env=environment, cwd=home))

        def reboot() -> None:
            processes[-1].send_signal(signal.SIGKILL)
            processes[-1].wait()
            kept.write_text(str(replace(ticket, expires=1.0)))
            until(lambda: "a" not in cluster.members())
            boot()

        try:
            boot()
            until(lambda: "a" in cluster.members(), 200)
            before = cluster.broker.runs.machine.members["a"].generation
            found = goes_on(cluster, reboot)
            after = cluster.broker.runs.machine.members["a"].generation
        finally:
            for process in processes:
                process.kill()
                process.wait()
    check(found, home)
    assert after > before
    assert Ticket.parse(kept.read_text()).expires == 1.0


class Machine:
    """A worker in this process that keeps its key and certificate as a machine does."""

    def __init__(self, cluster: Loopback, place: Path) -> None:
        self._cluster, self._place, self._key, self._ticket = cluster, place, new_key(), cluster.ticket("join")
        self._worker: Worker | None = None

    def boot(self, listen: str) -> None:
        member = membership.join(self._ticket, name="a", role="worker", key=self._key, kept=self._place)
        options = WorkerOptions(listen=listen, advertise=listen.split(":", maxsplit=1)[0], memory=4e9, data=self._cluster.home)
        self._worker = self._cluster.workers["a"] = Worker(member, options, print)
        thread = threading.Thread(target=_serve, args=(self._worker,), daemon=True)
        thread.start()
        self._cluster.threads.append(thread)
        until(lambda: "a" in self._cluster.members())
        self._ticket = replace(self._ticket, expires=1.0)  # it is not needed any more

    def goes(self) -> None:
        """It is torn out of the network."""
        assert self._worker is not None
        self._worker.close()
        until(lambda: "a" not in self._cluster.members())


@pytest.mark.parametrize("what", ["address", "version"])
def test_a_machine_with_another_address_or_version(home: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(home, 0) as cluster:
        machine = Machine(cluster, home / "certificate")
        machine.boot("127.0.0.1:0")
        addresses = [cluster.broker.runs.machine.members["a"].address]

        def back() -> None:
            machine.goes()
            if what == "version":
                monkeypatch.setattr(membership, "__version__", f"{__version__}.1")  # a later patch
            machine.boot("127.0.0.2:0" if what == "address" else "127.0.0.1:0")

        found = goes_on(cluster, back)
        addresses.append(cluster.broker.runs.machine.members["a"].address)
        assert cluster.broker.runs.machine.members["a"].generation == 2
        assert set(cluster.members()) == {"a"}
    check(found, home)
    hosts = [address.rpartition(":")[0] for address in addresses]
    assert hosts == (["127.0.0.1", "127.0.0.2"] if what == "address" else ["127.0.0.1"] * 2)
