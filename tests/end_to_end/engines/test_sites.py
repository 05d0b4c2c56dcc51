"""Workers that are sites of two ranks train as one process does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.chaos.faults import Fault, judge
from farflung.chaos.kills import BROKER, differing_tensors, play
from farflung.checkpoint import export_file
from farflung.cluster import Device, Topology
from farflung.job import JobSpec
from farflung.plan import Plan, Stage, estimate
from farflung.telemetry import RunFolder
from farflung.units import Bytes, FlopsPerSecond
from tests.support.commands.patient_cluster import Patient
from tests.support.engines.sites import RANKS, rank_processes, sites
from tests.support.runs.loopback import Finished, Loopback, captured, same, text_folder, text_job
from tests.support.runs.resumed_runs import rest

STEPS = 6
SHARDED = {"shard": "parameters"}
#: AdamW and clipping, dropout, and micro-batches of two sizes.
CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "micro_batch_sizes": [3, 3, 2, 3, 2, 3],
    "model": {"args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1}},
    "optimizer": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.5},
    "evaluate": {"every": 3, "batches": 1},
}
TOGETHER = {"shard": "tensor"}
#: So many layers that each of two stages has whole ones.
DEEPER = {"model": {"args": {**CHANGES["model"]["args"], "layers": 4}}}


def alone(home: Path, **changes: Any) -> Finished:
    """What one worker with one device makes of the job."""
    (home / "alone").mkdir()
    text_folder(home / "alone")
    with Loopback(home / "alone", 1) as cluster:
        return cluster.run(text_job(**CHANGES | changes))


def plan_of(folder: RunFolder) -> Plan:
    return Plan.from_json(folder.plan.read_text())


def divided(folder: RunFolder) -> set[str]:
    """The devices on which ranks divide the parameters of a stage."""
    return {device for stage in plan_of(folder).stages for device in stage.devices if stage.shard == "parameters"}


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        pytest.param("a", {}, id="site", marks=pytest.mark.slow),
        pytest.param("ab", {}, id="pipeline"),
        pytest.param("ab", {"plan": {"replicas": 2}}, id="replicas", marks=pytest.mark.slow),
        pytest.param("aB", {}, id="site and worker", marks=pytest.mark.slow),
        pytest.param("Ab", {"plan": {"schedule": "zb-h1"}}, id="split backward", marks=pytest.mark.slow),
        pytest.param("ab", {"plan": SHARDED}, id="divided"),
        pytest.param("a", {"plan": SHARDED, "virtual_replicas": 3}, id="divided, parts", marks=pytest.mark.slow),
        pytest.param("ab", {"plan": {**SHARDED, "replicas": 2}}, id="divided, replicas", marks=pytest.mark.slow),
        pytest.param("aB", {"plan": SHARDED}, id="divided, site and worker", marks=pytest.mark.slow),
        pytest.param("ab", {"plan": {**SHARDED, "schedule": "zb-h1"}}, id="divided, split backward", marks=pytest.mark.slow),
        pytest.param("a", {"plan": {**SHARDED, "recompute": "always"}}, id="divided, recompute", marks=pytest.mark.slow),
    ],
)
def test_the_weights_are_those_of_one_process(tmp_path: Path, names: str, changes: dict[str, Any]) -> None:
    with sites(tmp_path, names) as cluster:
        found = cluster.run(text_job(**CHANGES | changes))
    truth = alone(tmp_path, **{key: value for key, value in changes.items() if key != "plan"})
    assert found.result.status == "finished", found.result.cause
    assert len(found.devices) == len(names)
    assert plan_of(RunFolder(found.folder)).schedule.endswith("@2")
    wanted = {name for name in names if name.islower()} if changes.get("plan", {}).get("shard") else set()
    assert divided(RunFolder(found.folder)) == wanted
    assert found.losses == truth.losses
    assert [record.loss for record in found.evaluations] == [record.loss for record in truth.evaluations]
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


@pytest.mark.slow
def test_sums_in_any_order_differ_by_rounding(tmp_path: Path) -> None:
    changes = {"sync": {"order": "any"}, "optimizer": {"name": "sgd", "lr": 0.1}}
    with sites(tmp_path, "a") as cluster:
        found = cluster.run(text_job(**CHANGES | changes))
    truth = alone(tmp_path, **changes)
    assert found.losses == pytest.approx(truth.losses, rel=1e-5)
    ours, theirs = found.tensors(STEPS), truth.tensors(STEPS)
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6) for name in theirs)


@pytest.mark.parametrize(
    ("rank", "plan"),
    [
        pytest.param(0, {}, id="first", marks=pytest.mark.slow),
        pytest.param(1, {}, id="second"),
        pytest.param(0, SHARDED, id="first, divided", marks=pytest.mark.slow),
        pytest.param(1, SHARDED, id="second, divided"),
    ],
)
def test_the_death_of_a_rank_costs_time_only(tmp_path: Path, rank: int, plan: dict[str, Any]) -> None:
    killed: list[int] = []
    with sites(tmp_path, "ab") as cluster:

        def kill(run: str, record: Any) -> None:
            if record.step == 2 and not killed:
                victim = rank_processes(cluster.workers["b"])[rank]
                killed.append(victim.pid)
                victim.kill()

        found = cluster.run(text_job(**CHANGES | {"plan": plan}), on_record=kill)
        said = "\n".join(cluster.said["b"])
    truth = alone(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert len(killed) == 1
    assert f"rank {rank} of 2 died of SIGKILL" in said
    steps = {record.step: record.loss for record in found.steps}
    assert [steps[step] for step in range(STEPS)] == truth.losses
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


def assert_close(found: Finished, truth: Finished, steps: int = STEPS) -> None:
    """Losses and weights are equal to rounding. In 50 steps, AdamW enlarges the rounding of gradients that are nearly zero."""
    few = steps == STEPS
    assert found.result.status == "finished", found.result.cause
    by_step = {record.step: record.loss for record in found.steps}
    assert [by_step[step] for step in range(steps)] == pytest.approx(truth.losses, abs=1e-4 if few else 1e-3)
    ours, theirs = found.tensors(steps), truth.tensors(steps)
    assert ours.keys() == theirs.keys()
    far = [name for name in theirs if few and not np.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-3)]
    assert far == []


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        pytest.param("a", {"steps": 50}, id="site, 50 steps", marks=pytest.mark.slow),
        pytest.param("ab", {}, id="pipeline"),
        pytest.param("ab", {"plan": {"replicas": 2}}, id="replicas", marks=pytest.mark.slow),
        pytest.param("aB", {"plan": {"recompute": "always"}}, id="site and worker, recompute", marks=pytest.mark.slow),
        pytest.param("ab", {"plan": {"schedule": "zb-h1"}}, id="split backward", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_compute_together_train_to_rounding(tmp_path: Path, names: str, changes: dict[str, Any]) -> None:
    """With dropout, clipping, and micro-batches of two sizes."""
    plan, steps = {**TOGETHER, **changes.get("plan", {})}, changes.get("steps", STEPS)
    with sites(tmp_path, names) as cluster:
        found = cluster.run(text_job(**CHANGES | DEEPER | {"plan": plan, "steps": steps}))
        planned = next(frame for frame in found.frames if frame.kind == "planned")
    truth = alone(tmp_path, **DEEPER, steps=steps)
    made = plan_of(RunFolder(found.folder))
    sited = {stage.shard for stage in made.stages if set(stage.devices) & set(names)}
    assert sited == {"tensor"}
    assert "@" not in made.schedule, "a micro-batch does not wait for others"
    assert "ranks compute each micro-batch together: results differ by rounding" in str(planned.header["summary"])
    assert_close(found, truth, steps)
    assert [record.loss for record in found.evaluations] == pytest.approx([record.loss for record in truth.evaluations], abs=1e-3)


def test_after_the_death_of_a_rank_that_computes_with_another(tmp_path: Path) -> None:
    """Its run continues; one worker without ranks continues a checkpoint of it."""
    changes = CHANGES | {"plan": TOGETHER, "checkpoint": {"every": 3}}
    killed: list[int] = []
    with sites(tmp_path, "a") as cluster:

        def kill(run: str, record: Any) -> None:
            if record.step == 1 and not killed:
                victim = rank_processes(cluster.workers["a"])[1]
                killed.append(victim.pid)
                victim.kill()

        found = cluster.run(text_job(**changes), on_record=kill)
        said = "\n".join(cluster.said["a"])
        cluster.add("b")
        rested = cluster.run(rest(text_job(**CHANGES), f"{found.folder}/checkpoints/step-0000000003"))
    truth = alone(tmp_path)
    assert len(killed) == 1
    assert "rank 1 of 2 died of SIGKILL" in said
    assert_close(found, truth)
    ours, theirs = rested.tensors(STEPS), truth.tensors(STEPS)
    assert [name for name in theirs if not np.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-3)] == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["local_sgd", "diloco"])
def test_sites_synchronize_as_workers_with_one_device_do(tmp_path: Path, strategy: str) -> None:
    """Each replica has one micro-batch, whatever speeds were measured. Both ranks own parameters."""
    changes = {"plan": {"replicas": 2}, "sync": {"strategy": strategy, "settings": {"sync_every": 2}}}
    found: list[Finished] = []
    for names in ("ab", "AB"):
        home = tmp_path / f"of {len(found)}"
        home.mkdir()
        with sites(home, names) as cluster:
            found.append(cluster.run(text_job(**CHANGES | {"micro_batch_sizes": [3, 3]} | changes)))
        assert found[-1].result.status == "finished", found[-1].result.cause
        (stage,) = plan_of(RunFolder(found[-1].folder)).stages
        assert [(one.first, one.end) for one in stage.replicas] == [(0, 1), (1, 2)]
    ours, theirs = found
    assert ours.losses == theirs.losses
    assert same(theirs.tensors(STEPS), ours.tensors(STEPS)) == []


class Sites(Patient):
    """Whose workers are sites of two ranks."""

    def start_process(self, name: str, arguments: list[str]) -> None:
        joins = "join" in arguments and "--devices" not in arguments
        super().start_process(name, [*arguments, "--devices", ",".join(RANKS)] if joins else arguments)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [pytest.param("b", id="leader"), pytest.param(BROKER, marks=pytest.mark.slow)])
def test_the_death_of_a_leader_or_of_the_broker_costs_time_only(tmp_path: Path, victim: str) -> None:
    """The process that talks to the broker and to other sites is killed, and its ranks end with it; or the broker is."""
    text_folder(tmp_path)
    job = text_job(**CHANGES | {"plan": SHARDED, "steps": 40, "checkpoint": {"every": 5}})
    faults, told = (Fault(after_step=15, victim=victim),), list[str]()
    with Sites(tmp_path / "wild", ["a", "b"], data=tmp_path) as wild:
        root, _, recoveries = play(wild, captured(job, tmp_path), faults, told.append)
    truth = alone(tmp_path, steps=40, checkpoint={"every": 5})
    assert [recovery.fault for recovery in recoveries] == list(faults), told
    assert "a" in divided(RunFolder(root)), "the last plan may do without b"
    found = judge(list(RunFolder(root).records()), recoveries, steps=40, samples=sum(CHANGES["micro_batch_sizes"]))
    assert (found.lost, found.repeated) == (0, 0)
    assert differing_tensors(truth.folder, root) == []


def test_a_model_that_fits_only_in_parts_is_divided_and_resumes_whole(tmp_path: Path) -> None:
    """The planner divides parameters because of the sites' memory; one worker continues the checkpoint, and exports are equal."""
    wide = {"vocab": 256, "sequence": 16, "layers": 12, "width": 64, "heads": 2}
    changes = CHANGES | {"model": {"args": wide}, "checkpoint": {"every": 3}, "evaluate": {}, "micro_batch_sizes": [1, 1]}
    text_folder(tmp_path)
    memory = tight(text_job(**changes), tmp_path)
    with Loopback(tmp_path, 0) as cluster:
        cluster.add("a", memory=memory, devices=RANKS)
        found = cluster.run(text_job(**changes))
        planned = next(frame for frame in found.frames if frame.kind == "planned")
        status = [run for run in cluster.client.status()["runs"] if run["run"] == found.run]  # type: ignore[union-attr]
        cluster.add("b")
        rested = cluster.run(rest(text_job(**changes), f"{found.folder}/checkpoints/step-0000000003"))
    assert found.result.status == "finished", found.result.cause
    assert divided(RunFolder(found.folder)) == {"a"}
    assert status[0]["divided"] == [0]
    price = r"fits only with parameters divided among ranks: [\d.]+ x slower"
    assert re.search(price, str(planned.header["summary"])), "the planner knows how fast the ranks exchange"
    truth = alone(tmp_path, **changes)
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    assert same(truth.tensors(STEPS), rested.tensors(STEPS)) == []
    for one, name in ((truth, "alone.safetensors"), (found, "site.safetensors")):
        export_file(one.reader(), tmp_path / name)
    assert (tmp_path / "alone.safetensors").read_bytes() == (tmp_path / "site.safetensors").read_bytes()


def tight(job: JobSpec, home: Path) -> float:
    """Bytes of a site of two ranks that are enough for divided parameters, and too few for whole ones."""
    graph = captured(job, home).graph
    needed = {}
    for shard in ("none", "parameters"):
        stage = Stage(index=0, start=0, stop=len(graph.ops), device="a", shard=shard)  # type: ignore[arg-type]
        plan = Plan(
            graph_hash=graph.hash, planner="by hand", stages=(stage,), micro_batch_sizes=job.micro_batch_sizes, schedule="1f1b@2"
        )
        site = Device(name="a", memory=Bytes(1e12), speed=FlopsPerSecond(1e9), ranks=2)
        network = Topology.from_matrices(np.zeros((1, 1)), np.full((1, 1), np.inf), [site])
        needed[shard] = estimate(graph, plan, network, job).devices[0].memory_bytes
    assert needed["parameters"] < 0.8 * needed["none"]
    return 0.9 * needed["parameters"] + 0.1 * needed["none"]
