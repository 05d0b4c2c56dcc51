"""``members``: what a thousand members cost one broker.

The broker is a process. The members are ``idle_members``: they speak the real protocol over TLS and compute nothing.
Some work in runs whose steps never happened, the others are idle. Measured are the broker's CPU time, memory, threads and
descriptors, the time of ``status`` and of a join, and how long the broker takes to notice that a member is frozen. With
``minutes``, members come and go for so long (the share ``churn`` of them in a minute), and the end is compared with the
beginning.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.commands.idle_members import IdleMembers, member_name
from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.programs import Program, start
from farflung.api.submission import bundle_job
from farflung.child_processes import end_all
from farflung.client.connection import Client
from farflung.job import make_job
from farflung.messages.submission import Bundle
from farflung.protocol.leases import LEASE
from farflung.security import Ticket
from farflung.transports.descriptors import raise_descriptor_limit
from farflung.worker.membership import join

__all__ = ["Members", "MembersSettings"]

#: Targets: of a core, bytes, seconds; how much more the end of the soak may take than its beginning.
_CPU, _MEMORY, _STATUS, _JOIN, _GROWTH = 0.3, 1.5e9, 1.0, 1.0, 1.05
_PATIENCE = 600.0
#: How often the broker's process is looked at for one figure.
_LOOKS = 10
#: Seconds without joins before a look in the soak: gRPC ends threads that were idle for 20 s.
_QUIET = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersSettings(Settings):
    """``members``, of which ``runs`` take ``workers`` each. CPU is measured for ``seconds``; ``times``: of each other figure.

    ``minutes``: of a soak, in which the share ``churn`` of all members goes and is replaced in each minute.
    """

    members: int = 1000
    runs: int = 4
    workers: int = 16
    seconds: float = 30.0
    times: int = 10
    minutes: float = 0.0
    churn: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """What the broker's process takes: bytes, threads, descriptors."""

    memory: float
    threads: int
    descriptors: int


class Members:
    """One broker and many members."""

    name = "members"
    summary = "1,000 members on one broker: CPU, memory, threads, time of status, of a join and of detecting a death; a soak"

    def settings(self, quick: bool) -> MembersSettings:
        """Quick: few members."""
        if quick:
            return MembersSettings(quick=True, members=12, runs=1, workers=3, seconds=1.0, times=2, minutes=0.1, churn=5.0)
        return MembersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, MembersSettings)
        raise_descriptor_limit()
        with tempfile.TemporaryDirectory(prefix="farflung-members-") as place, ExitStack() as ending:
            # first: it takes the processor, and members in this process could send no heartbeats meanwhile
            bundles = [_bundle(settings, Path(place)) for _ in range(settings.runs)]
            cluster = _Cluster(Path(place), ending)
            times = cluster.add(settings.members)
            say(f"{settings.members} members have joined in {sum(times):.0f} s of joining, {max(times):.2f} s at most")
            figures: dict[str, Any] = {"mass_join_seconds": statistics.median(times)}
            figures |= {"planning": [_plan_run(cluster, bundle, say) for bundle in bundles]}
            figures |= _at_rest(cluster, settings, say)
            if settings.minutes:
                figures |= {"soak": _soak(cluster, settings, say)}
            figures |= {"lost": cluster.members.lost()}
        return _report(figures, settings)


class _Cluster:
    """A broker, its members and a client."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        command = ["broker", "--listen", "127.0.0.1:0", "--no-web", "--home", str(folder / "home")]
        self.broker: Program = start([sys.executable, "-u", "-m", "farflung", *command], folder / "broker.log")
        ending.callback(end_all, [self.broker.process], 60.0)
        ticket = Ticket.parse(self.broker.until(r"farflung join (\S+)")[1])
        self.members = IdleMembers(ticket)
        ending.callback(self.members.close)
        self.client = Client(join(Ticket.parse(self.broker.until(r"--ticket (\S+)")[1]), name="bench", role="client"))
        ending.callback(self.client.close)
        self.process = psutil.Process(self.broker.process.pid)
        self._numbers = iter(range(sys.maxsize))

    def add(self, count: int) -> list[float]:
        """Let ``count`` more members join; return how long each took."""
        return self.members.join([member_name(next(self._numbers)) for _ in range(count)])

    def usage(self) -> _Usage:
        """What the broker takes while it handles no report: each report has a thread for a moment."""
        looks = []
        for _ in range(_LOOKS):
            time.sleep(0.1)
            memory = float(self.process.memory_info().rss)
            looks.append(_Usage(memory=memory, threads=self.process.num_threads(), descriptors=self.process.num_fds()))
        return min(looks, key=lambda one: one.threads)

    def idle(self) -> list[str]:
        """The names of members that have no part in a run, the newest first."""
        return [name for name, one in reversed(self.members.members.items()) if not one.part[0] and not one.frozen]

    def seconds_until_gone(self, name: str, end: Callable[[str], None]) -> float:
        """Seconds from ``end``, which ends the member ``name``, until the broker says that it is gone."""
        begin = time.monotonic()
        end(name)
        self.broker.until(rf"worker {name} is gone", _PATIENCE)
        return time.monotonic() - begin

    def status_seconds(self) -> float:
        begin = time.monotonic()
        self.client.status()
        return time.monotonic() - begin


def _bundle(settings: MembersSettings, folder: Path) -> Bundle:
    """A job that asks for ``settings.workers``."""
    (folder / "corpus").mkdir(exist_ok=True)
    document = {
        "name": "many",
        "steps": 1_000_000,
        "workers": settings.workers,
        "micro_batch_sizes": [2, 2],
        "model": {"recipe": "gpt", "args": {"vocab": 64, "sequence": 8, "layers": settings.workers, "width": 8, "heads": 2}},
        "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 8},
        "checkpoint": {"at_end": False},
        "plan": {"planner": "equal_compute"},
    }
    return bundle_job(make_job(document), base=folder)


def _plan_run(cluster: _Cluster, bundle: Bundle, say: Say) -> dict[str, float]:
    """Submit a run; return how long it takes until it trains, and the slowest ``status`` meanwhile."""
    begin = time.monotonic()
    cluster.client.submit(bundle)
    slowest = 0.0
    for run in _states(cluster.client, bundle.run):
        slowest = max(slowest, run["asked"])
        if run["state"] not in ("waiting", "planning", "preparing"):
            seconds = time.monotonic() - begin
            say(f"a run of {len(run['devices'])} members is {run['state']} after {seconds:.1f} s; status took {slowest:.2f} s")
            return {"seconds": seconds, "status_seconds": slowest, "devices": len(run["devices"])}
    raise AssertionError("a run has a state")


def _states(client: Client, name: str) -> Iterator[dict[str, Any]]:
    """The entries of a run in ``status``, a while apart, each with ``asked``: how long the answer took."""
    while True:
        begin = time.monotonic()
        runs: Any = client.status()["runs"]
        asked = time.monotonic() - begin
        yield next(one for one in runs if one["run"] == name) | {"asked": asked}
        time.sleep(0.2)


def _at_rest(cluster: _Cluster, settings: MembersSettings, say: Say) -> dict[str, Any]:
    before, begin = sum(cluster.process.cpu_times()[:2]), time.monotonic()
    time.sleep(settings.seconds)
    cpu = (sum(cluster.process.cpu_times()[:2]) - before) / (time.monotonic() - begin)
    usage = cluster.usage()
    status = [cluster.status_seconds() for _ in range(settings.times)]
    joins = [seconds for _ in range(settings.times) for seconds in cluster.add(1)]
    deaths = {}
    for way, end in (("frozen", cluster.members.freeze), ("killed", cluster.members.kill)):
        deaths[way] = [cluster.seconds_until_gone(cluster.idle()[0], end) for _ in range(settings.times)]
    figures = {"cpu": cpu, **asdict(usage), "status_seconds": status, "join_seconds": joins, "death_seconds": deaths}
    say(f"at rest: {figures}")
    return figures


def _soak(cluster: _Cluster, settings: MembersSettings, say: Say) -> dict[str, Any]:
    """Let members come and go. The first tenth warms up."""
    tenth = 6 * settings.minutes
    quiet = min(_QUIET, tenth)
    count = _replace(cluster, settings, tenth)
    time.sleep(quiet)
    warm = cluster.usage()
    say(f"after warm-up: {warm}")
    count += _replace(cluster, settings, 9 * tenth)
    time.sleep(quiet)
    last = cluster.usage()
    say(f"at the end: {last}; {count} members went and came")
    present: Any = cluster.client.status()["members"]
    live = {name for name, one in cluster.members.members.items() if not one.frozen}
    return {
        "replaced": count,
        "begin": asdict(warm),
        "end": asdict(last),
        "growth": {key: value / asdict(warm)[key] for key, value in asdict(last).items()},
        "missing": sorted(live - {row["name"] for row in present}),
    }


def _replace(cluster: _Cluster, settings: MembersSettings, seconds: float) -> int:
    """Replace the oldest idle members for so many ``seconds``, one after the other; return how many."""
    begin, pause = time.monotonic(), 60 / (settings.churn * settings.members)
    count = 0
    while time.monotonic() < begin + seconds:
        name = cluster.idle()[-1]
        (cluster.members.kill, cluster.members.leave)[count % 2](name)
        cluster.add(1)
        count += 1
        time.sleep(max(0.0, begin + count * pause - time.monotonic()))
    return count


def _report(figures: Mapping[str, Any], settings: MembersSettings) -> Report:
    death = max(figures["death_seconds"]["frozen"])
    allowed = float(LEASE) + 1.0
    rows: list[tuple[str, str, str, bool]] = [
        ("CPU", f"{_CPU:.0%} of a core", f"{figures['cpu']:.1%}", figures["cpu"] <= _CPU),
        ("memory", f"{_MEMORY / 1e9:g} GB", f"{figures['memory'] / 1e9:.2f} GB", figures["memory"] <= _MEMORY),
        _slowest("status", _STATUS, figures["status_seconds"]),
        _slowest("join", _JOIN, figures["join_seconds"]),
        ("detecting a frozen member", f"lease + 1 s = {allowed:g} s", f"{death:.2f} s", death <= allowed),
        ("live members lost", "none", str(len(figures["lost"])), not figures["lost"]),
    ]
    if settings.minutes:
        for key, growth in figures["soak"]["growth"].items():
            rows.append((f"soak: {key}, end over beginning", f"{_GROWTH:g} x", f"{growth:.3f} x", growth <= _GROWTH))
        missing = figures["soak"]["missing"]
        rows.append(("soak: live members that the broker lacks", "none", str(len(missing)), not missing))
    checks = [
        Check(name=name, target=target, measured=measured, passed=None if settings.quick else passed)
        for name, target, measured, passed in rows
    ]
    table: list[tuple[str, object]] = [(name, measured) for name, _, measured, _ in rows]
    table += [("threads", figures["threads"]), ("descriptors", figures["descriptors"])]
    table += [("slowest status while planning", max((one["status_seconds"] for one in figures["planning"]), default=0.0))]
    return Report(figures=figures, columns=("figure", "measured"), rows=table, checks=checks)


def _slowest(name: str, target: float, seconds: list[float]) -> tuple[str, str, str, bool]:
    middle, worst = statistics.median(seconds), max(seconds)
    return name, f"{target:g} s", f"{middle:.2f} s (at most {worst:.2f} s)", worst <= target
