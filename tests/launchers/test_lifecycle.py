"""The steps of ``up``, ``scale`` and ``down``, with a provider that only remembers. ``test_ssh`` makes them with real hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farflung.errors import FarflungError, InputError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState, Provider, ProviderType
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.lifecycle import Joined, Lifecycle
from farflung.launchers.programs import Program
from farflung.launchers.registry import PROVIDERS
from farflung.launchers.state import ClusterFolder
from farflung.protocol.runs import RunState
from farflung.units import Seconds


class Machines:
    """What the provider of a test has."""

    def __init__(self) -> None:
        self.broker = False
        self.refuses = 0
        self.workers: dict[str, ProcessState] = {}
        self.starts_as = ProcessState.RUNNING
        self.most: int | None = None
        self.runs: list[dict[str, str]] = []
        self.tickets: list[str] = []
        self.calls: list[str] = []


class Remembering:
    """A provider of processes that do not exist. Each running worker has joined."""

    class Settings(Section):
        """No keys."""

    settings: ClassVar[type[Section]] = Settings
    machines: ClassVar[Machines]

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        self.cluster = cluster

    def check(self, former: ClusterSpec | None) -> None:
        self.machines.calls.append("check" if former is None else "check again")

    def places(self) -> int | None:
        return self.machines.most

    def outside(self) -> str | None:
        return None

    def start_broker(self) -> None:
        self.machines.calls.append("broker")
        self.machines.broker = True

    def ask(self, words: Sequence[str]) -> str:
        self.machines.calls.append(words[0])
        if self.machines.refuses:
            self.machines.refuses -= 1
            raise FarflungError("no broker runs")
        if words[0] == "ticket":
            assert words[1:] == ["issue", "--scope", words[3], "--valid", "30 d", "--json"]
            return json.dumps({"ticket": f"{words[3]}-ticket"})
        joined = [{"name": name} for name, state in self.machines.workers.items() if state is ProcessState.RUNNING]
        return json.dumps({"members": [*joined, {"name": "other-0"}], "runs": self.machines.runs})

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        self.machines.tickets.append(ticket())
        self.machines.workers = {self.cluster.worker_name(str(one)): self.machines.starts_as for one in range(count)}

    def stop(self, *, force: bool) -> Sequence[str]:
        self.machines.workers, self.machines.broker = {}, False
        return ["one host is away"] if force else []

    def processes(self) -> Sequence[Process]:
        broker = ProcessState.RUNNING if self.machines.broker else ProcessState.ENDED
        states = {BROKER: broker, **self.machines.workers}
        return [Process(name=name, place="here", state=state) for name, state in states.items()]

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        return Program(words=[sys.executable, "-c", f"print('begins'); print('farflung: {name} lacks it')"], place="here")


def checks_the_protocol(found: type[Remembering]) -> ProviderType:
    """A type checker compares the class with the protocol here."""
    return found


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    Remembering.machines = Machines()
    PROVIDERS.add("remembering", lambda: checks_the_protocol(Remembering))
    yield Remembering.machines
    PROVIDERS.remove("remembering")


def lifecycle(wait: float = 0.0, **document: Any) -> Lifecycle:
    cluster = make_cluster({"name": "lab", "provider": "remembering", "workers": {"count": 2}, **document})
    provider: Provider = Remembering(cluster, Path())
    said: list[str] = []
    return Lifecycle(
        cluster=cluster,
        provider=provider,
        folder=ClusterFolder("lab"),
        say=said.append,
        wait=Seconds(wait),
        pause=lambda seconds: None,
    )


def test_up_starts_the_broker_then_workers(machines: Machines) -> None:
    machines.refuses = 2  # it does not answer at once
    assert lifecycle().up() == Joined(wanted=2, joined=2)
    assert machines.calls == ["check", "broker", "status", "status", "status", "ticket", "ticket", "status"]
    assert machines.tickets == ["join-ticket"]
    folder = ClusterFolder("lab")
    assert folder.ticket.read_text() == "owner-ticket"
    assert folder.state().count == 2
    assert lifecycle().up() == Joined(wanted=2, joined=2)
    assert "check again" in machines.calls


def test_scale_and_down(machines: Machines) -> None:
    lifecycle().up()
    assert lifecycle().scale(3) == Joined(wanted=3, joined=3)
    assert ClusterFolder("lab").state().count == 3
    assert lifecycle().down(force=False) == []
    assert (machines.broker, machines.workers) == (False, {})
    with pytest.raises(InputError, match="the cluster 'lab' is not up"):
        lifecycle().down(force=False)
    with pytest.raises(InputError, match="the cluster 'lab' is not up"):
        lifecycle().scale(1)


def test_workers_may_wait_for_machines(machines: Machines) -> None:
    machines.starts_as = ProcessState.WAITING
    assert lifecycle().up() == Joined(wanted=2, joined=0, waiting=2)


def test_a_worker_that_ends_is_reported_with_its_last_words(machines: Machines) -> None:
    machines.starts_as = ProcessState.ENDED
    with pytest.raises(FarflungError, match=r"lab-0 on here has ended: lab-0 lacks it; see `farflung logs --cluster lab lab-0`"):
        lifecycle().up()


def test_a_broker_that_ends_is_reported(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.refuses = 3
    monkeypatch.setattr(Remembering, "start_broker", lambda self: None)
    with pytest.raises(FarflungError, match="broker on here has ended: broker lacks it"):
        lifecycle().up()
    assert lifecycle().down(force=False) == [], "what was begun can be ended"


def test_workers_that_do_not_join_in_time(machines: Machines) -> None:
    machines.workers = {}
    found = lifecycle()
    original = Remembering.ask
    answer = json.dumps({"members": [], "runs": []})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remembering, "ask", lambda self, words: answer if words[0] == "status" else original(self, words))
        with pytest.raises(
            FarflungError, match=r"^0 of 2 workers joined within 0 s .*: see `farflung logs --cluster lab`, or wait"
        ) as e:
            found.up()
    assert "(lab-0 on here: lab-0 lacks it)" in str(e.value), "it still waits for the broker"


def test_active_runs_are_not_ended_by_mistake(machines: Machines) -> None:
    lifecycle().up()
    machines.runs = [{"run": "run-1", "state": RunState.RUNNING.value}, {"run": "run-2", "state": RunState.FINISHED.value}]
    with pytest.raises(InputError, match=r"the cluster 'lab' has 1 active run \(run-1\): wait, stop the runs .* or add --force"):
        lifecycle().down(force=False)
    assert lifecycle().down(force=True) == ["one host is away"]


def test_wrong_numbers_of_workers(machines: Machines) -> None:
    with pytest.raises(InputError, match=r"the provider 'remembering' needs a number of workers: add count = 4 to \[workers\]"):
        lifecycle(workers={}).up()
    machines.most = 1
    with pytest.raises(InputError, match=r"2 workers are wanted, and the table \[remembering\] has 1 place: add hosts, or raise"):
        lifecycle().up()
    assert not machines.broker, "nothing is started"


def test_another_provider_needs_down_first(machines: Machines) -> None:
    lifecycle().up()
    found = lifecycle()
    other = make_cluster({"name": "lab", "provider": "ssh", "ssh": {"hosts": [{"address": "a"}]}})
    with pytest.raises(InputError, match="the cluster 'lab' is up with the provider 'remembering': run farflung down before"):
        Lifecycle(cluster=other, provider=found.provider, folder=found.folder, say=print, wait=Seconds(0.0)).up()
