"""Benchmarks on emulated links: their arithmetic, what they refuse, and (with namespaces) one short run of each."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import paced
from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.harness.gpt_stages import place_blocks
from benchmarks.harness.paced import Pace, PacedEngine, pace_of
from benchmarks.harness.stand_in import Given
from benchmarks.network.overlap import Chain, lower_bound
from benchmarks.network.pipeline import _ratios, network, step_seconds
from benchmarks.planning.prediction import PredictionSettings, _report, draw
from farflung.cluster import Topology
from farflung.engines.base import EngineSettings
from farflung.errors import EmulationError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.job.spec import JobSpec
from farflung.plan import estimate
from farflung.planners.finish import Problem, settle
from farflung.units import FlopsPerSecond, Seconds

NAMES = ("overlap", "pipeline", "prediction")


def silent(text: str) -> None:
    del text


def chain_graph(layers: int = 3) -> Any:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 8))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=8, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 8)))
    return builder.build()


@pytest.mark.parametrize("name", NAMES)
def test_without_root_they_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    chosen = BENCHMARKS.get(name)
    with pytest.raises(EmulationError, match="emulation needs root"):
        chosen.run(chosen.settings(quick=True), silent)


def test_a_step_ends_when_its_last_rank_has_ended_it() -> None:
    assert step_seconds([[1.0, 3.0, 6.0], [2.0, 3.5, 5.0]]) == [0.0, 1.5, 2.5]


def test_ratios_are_medians_over_turns() -> None:
    seconds = {"torch": [[4.0, 4.0], [8.0], [6.0]], "dense": [[2.0], [8.0], [6.0, 6.0]]}
    assert _ratios(seconds) == {"dense": 1.0}
    assert _ratios({"dense": [[1.0]]}) == {}


def test_links_are_read() -> None:
    topology = network(3, "8:40")
    assert topology.alpha[0, 2] == 0.02
    assert topology.beta[2, 1] == 1e6
    for text in ("8", "8:x", "0:40", "a:1"):
        with pytest.raises(InputError, match=r"must be rate:round trip in Mbit/s and ms, e.g. 20:40"):
            network(3, text)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("kinds=jax",), "unknown contestant 'jax': known are torch, dense"),
        (("steps=1",), "steps must be more than warm_up, got 1 and 1"),
    ],
)
def test_what_pipeline_refuses(pairs: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.network.pipeline.require_root", lambda: None)
    chosen = BENCHMARKS.get("pipeline")
    with pytest.raises(InputError, match=message):
        chosen.run(override(chosen.settings(quick=True), pairs), silent)


def test_overlap_knows_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.network.overlap.require_root", lambda: None)
    chosen = BENCHMARKS.get("overlap")
    with pytest.raises(InputError, match="unknown case 'memory': known are communication, compute"):
        chosen.run(override(chosen.settings(quick=True), ["cases=memory"]), silent)


def a_chain(**changes: Any) -> Chain:
    given = Chain(
        forward=(1.0, 1.0), backward=(2.0, 2.0), update=(0.5, 0.5), up=(0.1,), down=(0.2,), latency=(0.3,), micro_batches=10
    )
    return replace(given, **changes)


def test_a_bound_by_hand_where_computing_is_slow() -> None:
    bound = lower_bound(a_chain())
    # stage 1: after 0F and the way there; then the way back, 0B and the update
    assert (bound.where, bound.work) == ("stage 1", 30.0)
    assert bound.fill == pytest.approx(1.0 + 0.4 + 0.5 + 2.0 + 0.5)
    assert bound.seconds == pytest.approx(34.4)


def test_a_bound_by_hand_where_a_direction_is_slow() -> None:
    bound = lower_bound(a_chain(down=(9.0,)))
    assert (bound.where, bound.work) == ("link 1-0", 90.0)
    assert bound.fill == pytest.approx(1.0 + 0.4 + 1.0 + 2.0 + 0.3 + 2.0 + 0.5)


@pytest.mark.parametrize("up", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "eager-2", "eager-4"])
def test_no_estimate_is_below_the_bound(up: float, schedule: str) -> None:
    from farflung.schedules import PipelineTimes, TimedEdge, Transfer, get_schedule, time_schedule

    count, micro = 4, 6
    chain = Chain(
        forward=(1.0,) * count,
        backward=(2.0,) * count,
        update=(0.5,) * count,
        up=(up,) * 3,
        down=(up / 2,) * 3,
        latency=(0.1,) * 3,
        micro_batches=micro,
    )
    times = PipelineTimes(
        forward=chain.forward,
        backward=chain.backward,
        device=range(count),
        edges=[
            TimedEdge(source=i, target=i + 1, forward=Transfer(0.1, up), backward=Transfer(0.1, up / 2)) for i in range(count - 1)
        ],
        update=chain.update,
    )
    found = time_schedule(get_schedule(schedule).actions(count, micro), times)
    assert found.seconds >= lower_bound(chain).seconds - 1e-9


def test_the_pace_is_that_of_the_estimate() -> None:
    graph = chain_graph()
    speed = 1e6
    topology = Topology.preset("homogeneous-1")
    topology = topology.with_devices([replace(topology.devices[0], speed=FlopsPerSecond(speed), overhead=Seconds(0.0))])
    job = JobSpec(micro_batch_sizes=(4,))
    plan = settle(Problem.of(graph, topology, job), [(0, len(graph.ops), topology.names[0])], "given")
    (stage,) = estimate(graph, plan, topology, job).stages
    (piece,) = cut(graph, plan.bounds)
    pace = pace_of(piece, EngineSettings(optimizer=job.optimizer), speed * topology.devices[0].speed_factor)
    assert (pace.forward, pace.backward) == pytest.approx((stage.forward_seconds, stage.backward_seconds))
    assert pace.update == pytest.approx(stage.update_seconds)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_actions_take_the_modelled_time_or_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(paced.time, "perf_counter", lambda: clock.now)

    class Runner:
        subgraph = "its own"

        def forward(self, key: Any, values: Any, data: Any) -> str:
            clock.sleep(key)
            return "values"

    engine = PacedEngine(Any, lambda: 1.0, clock.sleep)  # type: ignore[arg-type]
    runner: Any = paced._PacedRunner(Runner(), Pace(forward=2.0, backward=3.0, update=1.0), engine)  # type: ignore[arg-type]
    assert runner.forward(0.5, {}, {}) == "values"
    assert (clock.now, engine.late) == (2.0, 0.0)
    runner.forward(5.0, {}, {})
    assert (clock.now, engine.late) == (7.0, 3.0)
    assert runner.subgraph == "its own"


def test_trials_come_from_the_seed() -> None:
    settings, blank = PredictionSettings(), network(5, "100:2")
    one, again, other = (draw(settings, blank, 1e9, 1e4, number) for number in (3, 3, 4))
    assert np.array_equal(one.topology.beta, again.topology.beta)
    assert (one.seed, one.workers, one.schedule) == (again.seed, again.workers, again.schedule)
    assert not np.array_equal(one.topology.beta, other.topology.beta)
    drawn = [draw(settings, blank, 1e9, 1e4, number) for number in range(settings.trials)]
    assert all(2 <= trial.workers <= 5 for trial in drawn)
    assert {(trial.replicas, trial.workers) for trial in drawn if trial.replicas > 1} == {(2, 2), (2, 4)}
    assert 10 < sum(trial.replicas == 1 for trial in drawn) < 25, "pipelines too"
    assert {trial.codec.name for trial in drawn} == {"identity", "fp16", "adatopk"}
    assert all(trial.replicas == 1 for trial in (draw(replace(settings, grids=0.0), blank, 1e9, 1e4, n) for n in range(30)))


@pytest.mark.parametrize(("errors", "verdict"), [((0.02, -0.04, 0.12), [True, True]), ((0.02, -0.06, 0.3), [False, False])])
def test_errors_are_judged_by_median_and_ninetieth(errors: tuple[float, ...], verdict: list[bool]) -> None:
    keys = ("number", "stages", "replicas", "micro_batches", "schedule", "codec", "predicted", "measured")
    found = [{**dict.fromkeys(keys, 1), "error": error} for error in 10 * errors]
    assert [check.passed for check in _report(PredictionSettings(), found).checks] == verdict
    assert [check.passed for check in _report(PredictionSettings(quick=True), found).checks] == [None, None]


def test_blocks_are_dealt_out() -> None:
    builder = GraphBuilder("blocks")
    value = builder.input("x", "float32", (4, 8))
    for i in range(3):
        value = builder.add(f"blocks.{i}.up", "Linear", value, in_features=8, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 8)))
    graph = builder.build()
    placed = place_blocks(graph, (2, 1), ("a", "b"))
    assert [device for _, _, device in placed] == ["a", "b"]
    assert graph.ops[placed[1][0]].module == "blocks.2.up"
    assert (placed[0][0], placed[0][1], placed[1][1]) == (0, placed[1][0], len(graph.ops))
    with pytest.raises(InputError, match=r"the split \(2, 2\) must deal out 3 blocks"):
        place_blocks(graph, (2, 2), ("a", "b"))


def test_stages_come_from_a_file(tmp_path: Path) -> None:
    graph = chain_graph()
    (tmp_path / "stages.json").write_text(f'[[0, 2, "device-1"], [2, {len(graph.ops)}, "device-0"]]')
    plan = Given(tmp_path / "stages.json").plan(graph, network(2, "8:40"), job=JobSpec(micro_batch_sizes=(4,)))
    assert next((stage.start, stage.stop, stage.device) for stage in plan.stages) == (0, 2, "device-1")
    assert plan.planner == "given"


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", NAMES)
def test_a_short_run(name: str) -> None:
    chosen = BENCHMARKS.get(name)
    report: Any = chosen.run(chosen.settings(quick=True), silent)
    assert report.passed is None
    if name == "pipeline":
        (case,) = report.figures["cases"]
        assert case["bytes_per_step"]["adatopk"] < 0.2 * case["bytes_per_step"]["dense"]
    elif name == "overlap":
        (item,) = report.figures["runs"]
        assert item["measured"] > 0.98 * item["bound"]
    else:
        assert all(item["predicted"] > 0 and item["measured"] > 0 for item in report.figures["trials"])
