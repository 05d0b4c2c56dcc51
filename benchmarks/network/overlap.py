"""``overlap``: how near a step comes to what its slowest stage or link direction allows, four and eight stages.

A GPT with a block for each stage, a real broker and real workers over TLS in the nodes of an emulated network, and a device
emulation (``paced``): two processors cannot be eight devices, so each action holds its thread for the modelled time beside
the real arithmetic. The bound is a true one for any schedule: for each stage and each link direction, its work in a step plus the
least that must pass before its first and after its last piece of work (``fill``); the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.gpt_stages import GptSize, place_blocks, small_gpt, variant
from benchmarks.harness.paced import Pace, pace_of
from benchmarks.harness.priority import favoured
from benchmarks.network.pipeline import network
from farflung.chaos.local_cluster import Finished
from farflung.cluster import Topology
from farflung.emulation.kernel import require_root
from farflung.engines.base import EngineSettings
from farflung.errors import InputError
from farflung.graph.cut import SubGraph, cut
from farflung.job.spec import OptimizerSpec
from farflung.messages.submission import Bundle
from farflung.units import FlopsPerSecond, Seconds

__all__ = ["Bound", "Chain", "Overlap", "OverlapSettings", "lower_bound"]

_TARGET = 1.10
#: Payload of an Ethernet packet that an emulated link charges: the rate that planners are told.
GOODPUT = 0.956
#: name -> (seconds of forward and backward of a typical stage, seconds of one value on a link). Links get faster from case to
#: case: on connections that have known a link four times as fast, packets were dropped all along, steps took 1.3 to 1.6.
_CASES: Mapping[str, tuple[float, float]] = {"communication": (0.04, 0.16), "compute": (0.16, 0.04)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A pipeline in seconds: forward, backward, update of each stage; a value up and a gradient down each link; latencies."""

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    up: Sequence[float]
    down: Sequence[float]
    latency: Sequence[float]
    micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``seconds`` = ``work`` of ``where`` in a step + ``fill``."""

    where: str
    work: float
    fill: float

    @property
    def seconds(self) -> float:
        """No step can be shorter."""
        return self.work + self.fill


def lower_bound(chain: Chain) -> Bound:
    """The largest of the bounds of all stages and link directions; a step lasts until stage 0 has its update."""
    count = len(chain.forward)
    found = []
    there = [chain.up[i] + chain.latency[i] for i in range(count - 1)]
    back = [chain.down[i] + chain.latency[i] for i in range(count - 1)]
    for s in range(count):
        head = sum(chain.forward[:s]) + sum(there[:s])
        tail = sum(back[:s]) + sum(chain.backward[:s]) + chain.update[0]
        work = chain.micro_batches * (chain.forward[s] + chain.backward[s])
        found.append(Bound(where=f"stage {s}", work=work, fill=head + tail))
    for s in range(count - 1):
        head = sum(chain.forward[: s + 1]) + sum(there[:s])
        beyond = sum(chain.forward[s + 1 :]) + sum(there[s + 1 :]) + sum(back[s + 1 :]) + sum(chain.backward[s + 1 :])
        tail = sum(back[:s]) + sum(chain.backward[: s + 1]) + chain.update[0]
        around = head + beyond + tail
        up = Bound(where=f"link {s}-{s + 1}", work=chain.micro_batches * chain.up[s], fill=around + chain.latency[s] + back[s])
        down = Bound(
            where=f"link {s + 1}-{s}", work=chain.micro_batches * chain.down[s], fill=around + there[s] + chain.latency[s]
        )
        found += [up, down]
    return max(found, key=lambda bound: bound.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSettings(Settings):
    """``stages``: numbers of stages; ``cases``: what is slow (compute, communication); ``round_trip``: of all links, ms."""

    stages: tuple[int, ...] = (4, 8)
    cases: tuple[str, ...] = tuple(_CASES)
    schedules: tuple[str, ...] = ("auto",)
    round_trip: float = 20.0
    width: int = 32
    sequence: int = 64
    rows: int = 16
    micro_batches: int = 16
    steps: int = 4
    warm_up: int = bounded(1)


class Overlap:
    """Measured steps over their bounds."""

    name = "overlap"
    summary = "step time over what the slowest stage or link direction allows, 4 and 8 emulated devices (root)"

    def settings(self, quick: bool) -> OverlapSettings:
        """Quick: two stages, one case."""
        if quick:
            few = {"micro_batches": 4, "steps": 3}
            return OverlapSettings(quick=True, stages=(2,), cases=("communication",), schedules=("auto",), **few)
        return OverlapSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, OverlapSettings)
        require_root()
        unknown = [case for case in settings.cases if case not in _CASES]
        if unknown:
            raise InputError(f"unknown case {unknown[0]!r}: known are {', '.join(_CASES)}")
        with favoured():  # what is measured is the product, not who else computes here
            found = [item for count in settings.stages for item in _measure(settings, count, say)]
        return _report(settings, found)


def _measure(settings: OverlapSettings, count: int, say: Say) -> list[dict[str, Any]]:
    """All cases with ``count`` stages, in one cluster."""
    size = GptSize(blocks=count, width=settings.width, sequence=settings.sequence, rows=settings.rows)
    blank = network(count, f"100:{settings.round_trip}")
    base = small_gpt(size, blank, threads=settings.threads, seed=settings.seed)
    placed = place_blocks(base.graph, [1] * count, blank.names)
    pieces = cut(base.graph, [(start, stop) for start, stop, _ in placed])
    flops = median(_flops(piece) for piece in pieces)
    found = []
    with EmulatedCluster(blank, speeds=dict.fromkeys(blank.names, 1e9)) as cluster:
        for case in settings.cases:
            compute, transfer = _CASES[case]
            speed, rate = flops / compute, size.value_bytes / transfer
            cluster.set_speeds(dict.fromkeys(blank.names, speed))
            mbit = rate * 8e-6 / GOODPUT
            cluster.set_links(network(count, f"{mbit!r}:{settings.round_trip}"))
            topology = _told(blank, speed, rate)
            for schedule in settings.schedules:
                bundle = variant(base, topology, settings.micro_batches, settings.steps, {"schedule": schedule})
                run = cluster.run(bundle, placed)
                item = _item(settings, run, _chain(settings, base, run, speed), {"stages": count, "case": case, "wish": schedule})
                say(f"{count} stages, {case}, {item['schedule']}: {item['ratio']:.3f} of {item['bound']:.3f} s")
                found.append(item | {"mbit": mbit, "flops_per_second": speed})
    return found


def _flops(piece: SubGraph) -> float:
    pace = _pace(piece, 1.0)
    return pace.forward + pace.backward


def _pace(piece: SubGraph, speed: float) -> Pace:
    return pace_of(piece, EngineSettings(optimizer=OptimizerSpec(name="adamw")), speed)


def _told(blank: Topology, speed: float, rate: float) -> Topology:
    """What the planner is told: payload rates and modelled speeds."""
    devices = [replace(d, speed=FlopsPerSecond(speed), speed_factor=1.0, overhead=Seconds(0.0)) for d in blank.devices]
    beta = blank.beta.copy()
    beta[beta < float("inf")] = rate
    return replace(blank.with_devices(devices), beta=beta)


def _chain(settings: OverlapSettings, base: Bundle, run: Finished, speed: float) -> Chain:
    """The bound's numbers: bytes as the run's links counted them, over the rate that packets have room for."""
    pieces = cut(base.graph, run.plan.bounds)
    paces = [_pace(piece, speed) for piece in pieces]
    sent = run.steps[-1].link_bytes
    pairs = [(i, i + 1) for i in range(len(pieces) - 1)]
    names = [stage.device for stage in run.plan.stages]

    def seconds(source: int, target: int) -> float:
        return sent[source, target] / settings.micro_batches / float(run.topology.beta[_at(run, names, source, target)])

    return Chain(
        forward=[pace.forward for pace in paces],
        backward=[pace.backward for pace in paces],
        update=[pace.update for pace in paces],
        up=[seconds(i, j) for i, j in pairs],
        down=[seconds(j, i) for i, j in pairs],
        latency=[float(run.topology.alpha[_at(run, names, i, j)]) for i, j in pairs],
        micro_batches=settings.micro_batches,
    )


def _at(run: Finished, names: Sequence[str], source: int, target: int) -> tuple[int, int]:
    return run.topology.index(names[source]), run.topology.index(names[target])


def _item(settings: OverlapSettings, run: Finished, chain: Chain, facts: Mapping[str, Any]) -> dict[str, Any]:
    times = [step.seconds for step in run.steps[settings.warm_up :]]
    bound = lower_bound(chain)
    return {
        **facts,
        "schedule": run.plan.schedule,
        "seconds": times,
        "measured": median(times),
        "bound": bound.seconds,
        "bound_by": bound.where,
        "work": bound.work,
        "fill": bound.fill,
        "ratio": median(times) / bound.seconds,
        "predicted": run.steps[-1].predicted_seconds,
        "busy_seconds": dict(run.steps[-1].busy_seconds),
    }


def _report(settings: OverlapSettings, found: Sequence[dict[str, Any]]) -> Report:
    rows = [
        tuple(item[key] for key in ("stages", "case", "schedule", "measured", "bound", "bound_by", "ratio", "predicted"))
        for item in found
    ]
    columns = ("stages", "slow is", "schedule", "s/step", "bound s", "by", "ratio", "predicted s")
    checks = [
        Check(
            name=f"{item['stages']} stages, {item['case']}-bound",
            target=f"{_TARGET:g} x the bound at most",
            measured=f"{item['ratio']:.3f} x",
            passed=None if settings.quick else item["ratio"] <= _TARGET,
        )
        for item in found
        if item["wish"] == settings.schedules[0]
    ]
    return Report(figures={"runs": list(found)}, columns=columns, rows=rows, checks=checks)
