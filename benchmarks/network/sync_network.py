"""``sync-network``: iteration time of sync strategies over x = communication / (H x backward), on emulated links.

A real broker and four real workers over TLS in the nodes of an emulated network (``harness.emulated``), and a device emulation
(``paced``): links stay as they are, devices get slower or faster from case to case, so that x takes its values. The
exchange, its overlap with the backward, parameters and gradients are real; how long computing takes is not. First a run of S-SGD,
whose exchange hides behind nothing, measures what a link carries while all members send and receive at once; from this rate, the
layers, latencies and modelled computing the scheduler predicts, and its prediction stands beside each measurement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.paced import Pace, pace_of
from benchmarks.harness.priority import favoured
from benchmarks.harness.stand_in import registered
from benchmarks.network.overlap import GOODPUT
from benchmarks.network.pipeline import network
from farflung.chaos.local_cluster import Finished
from farflung.cluster import Topology
from farflung.emulation.kernel import require_root
from farflung.engines.base import EngineSettings
from farflung.errors import InputError
from farflung.graph.cut import cut
from farflung.ids import new_id
from farflung.job.spec import CheckpointSpec, DataSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec, SyncSpec
from farflung.messages.submission import Bundle
from farflung.plan.synchronization import strategy_of, world_of
from farflung.sync import Costs, World, mean_step_seconds
from farflung.units import FlopsPerSecond, Seconds

__all__ = ["MODELS", "SyncNetwork", "SyncNetworkSettings", "bundle_for"]

#: Recipes of small models with a small vocabulary: what a layer sends is mostly blocks, as in a large model.
MODELS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 6, "n_embd": 64, "n_head": 4, "vocab_size": 256},
    "llama": {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4}
    | {"num_key_value_heads": 4, "head_dim": 16, "vocab_size": 256},
}
_LENGTH = {"gpt2": "n_positions", "llama": "max_position_embeddings"}
#: Those whose step does not depend on its place in a period.
_EVERY_STEP = frozenset({"ssgd", "wfbp", "asc_wfbp"})
_FREE, _ASC, _LOCAL, _RUNS = "free_sets", "asc_wfbp", "local_sgd", "contiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNetworkSettings(Settings):
    """``link``: ``Mbit/s:round trip in ms`` of every link. ``ratios``: values of x. ``periods``: measured ones, of ``sync_every``
    steps; one step before does not count. ``merge``: ASC-WFBP merges layers to so many messages.
    ``plot``: a picture file to draw into."""

    models: tuple[str, ...] = tuple(MODELS)
    strategies: tuple[str, ...] = (_ASC, _LOCAL, "partial", _RUNS, _FREE)
    ratios: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0)
    link: str = "2:10"
    members: int = 4
    sync_every: int = 5
    periods: int = 1
    sequence: int = 32
    rows: int = 2
    merge: int = 8
    plot: str = ""


class SyncNetwork:
    """Curves of iteration time."""

    name = "sync-network"
    summary = "iteration time of sync strategies over communication / (H x backward), 4 emulated devices (root)"

    def settings(self, quick: bool) -> SyncNetworkSettings:
        """Quick: one model, one x, three strategies, few steps."""
        if quick:
            few = (_ASC, _LOCAL, _FREE)
            one = SyncNetworkSettings(quick=True, models=("gpt2",), strategies=few, ratios=(1.0,), members=2)
            return replace(one, sync_every=3, link="20:10")
        return SyncNetworkSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, SyncNetworkSettings)
        require_root()
        unknown = [model for model in settings.models if model not in MODELS]
        if unknown:
            raise InputError(f"unknown model {unknown[0]!r}: known are {', '.join(MODELS)}")
        with favoured():  # what is measured is the product, not who else computes here
            found = [item for model in settings.models for item in _model(settings, model, say)]
        report = _report(settings, found)
        if settings.plot:
            from benchmarks.network.sync_network_plot import draw

            draw(report.figures, Path(settings.plot))
        return report


def _model(settings: SyncNetworkSettings, model: str, say: Say) -> list[dict[str, Any]]:
    """All x and strategies for one model, in one cluster; strategies take turns at each x."""
    blank = network(settings.members, settings.link)
    base = bundle_for(settings, model, blank)
    whole = [(0, len(base.graph.ops), blank.names[0])]
    (piece,) = cut(base.graph, [(0, len(base.graph.ops))])
    unit = pace_of(piece, EngineSettings(optimizer=base.job.optimizer), 1.0)
    nbytes = sum(state.spec.nbytes for state in base.graph.parameters)
    found = []
    with EmulatedCluster(blank, speeds=dict.fromkeys(blank.names, 1e9)) as cluster:
        rate = _rate(settings, base, cluster, unit, nbytes)
        seconds = nbytes * 2 / settings.members / rate
        say(f"{model}: a link carries {rate * 8e-6 / float(blank.beta[0, 1] * 8e-6):.3f} of {settings.link} both ways")
        for ratio in settings.ratios:
            speed = unit.backward * settings.sync_every * ratio / seconds
            cluster.set_speeds(dict.fromkeys(blank.names, speed))
            for name in settings.strategies:
                run = cluster.run(_variant(settings, base, _told(blank, speed, rate), name, nbytes), whole)
                item = _item(settings, base, run, unit, speed) | {"model": model, "x": ratio, "strategy": name, "rate": rate}
                say(f"{model}, x {ratio:g}, {name}: {item['seconds']:.3f} s per step, predicted {item['predicted']:.3f}")
                found.append(item)
    return found


def _rate(settings: SyncNetworkSettings, base: Bundle, cluster: EmulatedCluster, unit: Pace, nbytes: int) -> float:
    """Payload bytes per second of a link while every member exchanges with every other: S-SGD's steps without their computing."""
    blank = cluster.topology
    guess = float(blank.beta[0, 1]) * GOODPUT
    speed = (unit.forward + unit.backward) * guess / nbytes
    cluster.set_speeds(dict.fromkeys(blank.names, speed))
    run = cluster.run(
        _variant(settings, base, _told(blank, speed, guess), "ssgd", nbytes), [(0, len(base.graph.ops), blank.names[0])]
    )
    computing = (unit.forward + unit.backward + unit.update) / speed + 2 * float(blank.alpha[0, 1])
    return nbytes * 2 / settings.members / (median(step.seconds for step in run.steps[1:]) - computing)


def bundle_for(settings: SyncNetworkSettings, model: str, topology: Topology) -> Bundle:
    """A run of ``model`` (of ``MODELS``) with S-SGD, a micro-batch for each of ``settings.members`` whole replicas."""
    job = JobSpec(
        name=f"bench-sync-{model}",
        threads=settings.threads,
        seed=settings.seed,
        micro_batch_sizes=(settings.rows,) * settings.members,
        model=ModelSpec(recipe=model, args=MODELS[model] | {_LENGTH[model]: settings.sequence, "sequence": settings.sequence}),
        data=DataSpec(kind="text", path="{stdlib}", glob="*.py", sequence=settings.sequence),
        optimizer=OptimizerSpec(name="adamw", lr=1e-3),
        checkpoint=CheckpointSpec(at_end=False),
        plan=PlanSpec(planner="given", recompute="never", replicas=settings.members),
        sync=SyncSpec(strategy="ssgd"),
    )
    with tempfile.TemporaryDirectory() as folder, registered(Path(folder)):
        return bundle_of(job, base=Path(folder), topology=topology)


def _variant(settings: SyncNetworkSettings, base: Bundle, topology: Topology, name: str, nbytes: int) -> Bundle:
    given: dict[str, Any] = {} if name in _EVERY_STEP else {"sync_every": settings.sync_every}
    if name == _ASC:
        given = {"merge_bytes": nbytes / settings.merge}
    steps = settings.periods * 3 if name in _EVERY_STEP else settings.periods * settings.sync_every
    changes = {"steps": 1 + steps, "sync": SyncSpec(strategy=name, settings=given)}
    return replace(base, run=new_id("run"), job=base.job.model_copy(update=changes), topology=topology)


def _told(blank: Topology, speed: float, rate: float) -> Topology:
    """What the planner is told: payload rates and modelled speeds."""
    devices = [replace(d, speed=FlopsPerSecond(speed), speed_factor=1.0, overhead=Seconds(0.0)) for d in blank.devices]
    beta = blank.beta.copy()
    beta[beta < float("inf")] = rate
    return replace(blank.with_devices(devices), beta=beta)


def _item(settings: SyncNetworkSettings, base: Bundle, run: Finished, unit: Pace, speed: float) -> dict[str, Any]:
    assert run.plan.sync is not None
    strategy = strategy_of(run.plan)
    world: World = world_of(run.plan, base.graph, base.job, 0)
    latency = float(run.topology.alpha[0, 1])
    hops = 2 if strategy.traits.link_share(world.members) < 1.0 or world.members == 2 else 1
    costs = Costs(update=unit.update / speed, latency=hops * latency, control=2 * latency)
    steps = 4 * settings.sync_every
    forward = unit.forward / speed
    predicted = mean_step_seconds(strategy, world, steps, forward_seconds=forward, costs=costs)
    times = [step.seconds for step in run.steps[1:]]
    every = 1 if strategy.traits.name in _EVERY_STEP else settings.sync_every
    periods = [fmean(times[at : at + every]) for at in range(0, len(times), every)]
    return {
        "seconds": median(periods),
        "steps": times,
        "predicted": float(predicted),
        "paper_seconds": float(mean_step_seconds(strategy, world, steps, forward_seconds=forward)),
        "forward": forward,
        "backward": unit.backward / speed,
        "communication": sum(float(layer.comm_seconds) for layer in world.layers),
        "layers": len(world.layers),
        "sent_bytes_per_step": fmean(step.total_bytes for step in run.steps[1:]),
        "losses": [run.steps[0].loss, run.steps[-1].loss],
    }


def _report(settings: SyncNetworkSettings, found: Sequence[dict[str, Any]]) -> Report:
    at = {(item["model"], item["x"], item["strategy"]): item for item in found}
    rows = [
        (i["model"], i["x"], i["strategy"], i["seconds"], i["predicted"], i["seconds"] / i["predicted"], i["backward"])
        for i in found
    ]
    off = [abs(item["seconds"] / item["predicted"] - 1) for item in found]
    figures = {"runs": list(found), "prediction_error_median": median(off), "prediction_error_max": max(off)}
    judged = not settings.quick
    checks = [
        Check(
            name="measured period against the scheduler's prediction, median",
            target="10 %",
            measured=f"{100 * median(off):.1f} % (largest {100 * max(off):.0f} %)",
            passed=median(off) <= 0.1 if judged else None,
        )
    ]
    for model in settings.models:
        near = min(settings.ratios, key=lambda x: abs(x - 1.0))
        for other, target in ((_ASC, 2.5), (_LOCAL, 1.2)):
            if (model, near, other) in at and (model, near, _FREE) in at:
                times = at[model, near, other]["seconds"] / at[model, near, _FREE]["seconds"]
                name = f"{model}: free sets against {other} at x = {near:g}"
                passed = times >= target if judged else None
                checks.append(Check(name=name, target=f"{target:g} x", measured=f"{times:.2f} x", passed=passed))
        for x in settings.ratios:
            if 3 <= x * settings.sync_every <= 8 and (model, x, _RUNS) in at and (model, x, _FREE) in at:
                times = at[model, x, _RUNS]["seconds"] / at[model, x, _FREE]["seconds"]
                name = f"{model}: free sets against contiguous ones at x = {x:g}"
                passed = times > 1 if judged else None
                checks.append(Check(name=name, target="above 1 x", measured=f"{times:.3f} x", passed=passed))
    columns = ("model", "x", "strategy", "s/step", "predicted", "ratio", "backward s")
    return Report(figures=figures, columns=columns, rows=rows, checks=checks)
