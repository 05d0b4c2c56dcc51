"""Runs that go on without the process that submitted them: submit, list, wait, export, from any process with the ticket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import farflung
from farflung.api.detached import Cluster, RunStatus, RunTable, connect
from farflung.errors import FarflungError, InputError
from farflung.job import load_job
from farflung.messages.watching import Result
from farflung.telemetry.records import EvaluationRecord, RunResult, StepRecord
from tests.support.runs.loopback import Loopback, plainly, same, text_job
from tests.support.runs.worker_deaths import vanish

JOB = """
steps = 3
micro_batch_sizes = [3, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 16, layers = 2, width = 16, heads = 2 }
[data]
kind = "text"
path = "corpus"
sequence = 16
[evaluate]
batches = 1
"""


@pytest.fixture
def cluster(two: Loopback) -> Iterator[Cluster]:
    with connect(str(two.ticket("submit"))) as cluster:
        yield cluster


def test_another_process_waits_and_exports(two: Loopback, home: Path) -> None:
    (home / "job.toml").write_text(JOB)
    ticket = str(two.ticket("submit"))
    with connect(ticket) as first:
        name = first.submit(home / "job.toml").name
    seen: list[StepRecord | EvaluationRecord] = []
    with farflung.connect(ticket) as later:
        run = later.run(name)
        result = run.wait(seen.append)
        assert (result.status, result.steps) == ("finished", 3)
        assert [one.step for one in seen if isinstance(one, StepRecord)] == [0, 1, 2]
        assert sum(isinstance(one, EvaluationRecord) for one in seen) == 1
        assert isinstance(result, farflung.TrainResult), "as from train"
        assert [*result.records, *result.evaluations] == sorted(seen, key=lambda one: isinstance(one, EvaluationRecord))
        assert result.losses == tuple(one.loss for one in result.records)
        assert (result.checkpoint, result.run, result.stopped) == (name, name, False)
        assert result.plan.stages
        assert result.seconds > 0
        assert [one.run for one in later.runs()] == [name]
        assert run.status.over
        truth = plainly(load_job(home / "job.toml"), home)[1]
        states, tensors, of_result = run.state_dict(), run.tensors(), result.tensors()  # each call reads the checkpoint
        assert same({name: states[name] for name in truth.states}, truth.states) == []
        assert "head.weight" in states, "a tied parameter has all its names"
        assert all(torch.equal(value, torch.from_numpy(states[key])) for key, value in tensors.items())
        assert all(torch.equal(value, of_result[key]) for key, value in tensors.items())
        assert result.state_dict().keys() == states.keys() == of_result.keys()
        for lacking in (lambda: result.graph, result.model):
            with pytest.raises(InputError, match=rf"^the (graph|module) of {name} is not in this process: "):
                lacking()
        lines = run.export(home / "weights.safetensors")
        assert lines == [f"{home / 'weights.safetensors'}: {len(run.state_dict())} tensors of step 3"]
        with pytest.raises(InputError, match=r"weights\.safetensors exists already: choose another path, or remove it$"):
            run.export(home / "weights.safetensors")
        with pytest.raises(InputError, match=r"^this run's model is not one of transformers, timm, diffusers"):
            later.export(name, home / "folder")


def test_a_model_of_transformers_becomes_a_folder(cluster: Cluster, two: Loopback, home: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = {
        "recipe": "gpt2",
        "args": {"vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "sequence": 16},
    }
    run = cluster.submit({"steps": 2, "model": model, "data": {"kind": "text", "path": "corpus", "sequence": 16}})
    assert run.wait().status == "finished"
    run.export(home / "folder")
    states = AutoModelForCausalLM.from_pretrained(home / "folder").state_dict()
    found = run.state_dict()
    names = {name: next(one for one in found if one.endswith(name)) for name in states}
    assert all(np.array_equal(states[name].numpy(), found[key]) for name, key in names.items())
    assert (home / "folder/tokenizer.json").is_file()


def test_a_run_continues_and_stops(cluster: Cluster) -> None:
    spec = text_job(steps=2)
    first = cluster.submit(spec)
    first.wait()
    second = cluster.submit(spec, resume=first.name, steps=4)
    seen: list[int] = []
    second.wait(lambda record: seen.append(record.step))
    assert seen == [2, 3]
    with pytest.raises(InputError, match=rf"^run '{second.name}' is over already: finished$"):
        second.stop()


def test_wait_reports_a_loss_and_the_recovery(
    cluster: Cluster, two: Loopback, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = cluster.submit(text_job(steps=100_000, workers=None, data={"path": "corpus"}))
    lost: list[str] = []

    def on_record(record: StepRecord | EvaluationRecord) -> None:
        if not lost:
            lost.append(next(name for name, one in two.broker.runs.machine.members.items() if one.run == run.name))
            vanish(two, lost[0])
        elif len(lost) == 1 and any("resumed after" in line for line in caplog.messages):
            lost.append("nobody else")
            run.stop()  # once: a run that is over refuses

    with caplog.at_level(logging.WARNING, logger="farflung"):
        assert run.wait(on_record).status == "stopped"
    lines = [one.getMessage() for one in caplog.records if one.name == "farflung"]
    assert lines[0].startswith(f"{run.name}: lost: worker {lost[0]} is gone: ")
    assert lines[-1].startswith(f"{run.name}: resumed after ")


def test_a_run_that_still_trains_has_no_export(cluster: Cluster, home: Path) -> None:
    run = cluster.submit(text_job(steps=100_000))
    try:
        with pytest.raises(InputError, match=rf"^run '{run.name}' still trains: wait until it is over$"):
            run.export(home / "weights.safetensors")
    finally:
        run.stop()
    result = run.wait()
    assert (result.status, result.stopped) == ("stopped", True)
    if result.planned is None:
        with pytest.raises(InputError, match=rf"^{run.name} was stopped before it had a plan: submit it again$"):
            _ = result.plan


@pytest.mark.parametrize(("written", "warned"), [(5, True), (8, False), (None, False)])
def test_weights_of_an_older_step_than_the_losses_are_reported(
    written: int | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was stopped while it waited for workers may have made steps since its newest checkpoint."""
    checkpoint = "" if written is None else f"/srv/runs/run-1/checkpoints/step-{written:010d}"
    ended = RunResult(status="stopped", steps=8, seconds=1.0, checkpoint=checkpoint)
    client: Any = SimpleNamespace(patience=0.0, watch=lambda run: iter([Result(result=ended.to_json(), kind="")]))
    with caplog.at_level(logging.WARNING, logger="farflung"):
        assert Cluster(client).wait("run-1").steps == 8
    line = "run-1: its weights are those after step 5 of 8, of its newest checkpoint"
    assert caplog.messages == ([line] if warned else [])


def test_a_run_that_fails_raises_its_cause(cluster: Cluster) -> None:
    run = cluster.submit(text_job(data={"path": "nowhere"}))
    with pytest.raises(FarflungError, match=rf"^{run.name} failed after 0 steps: .*nowhere"):
        run.wait()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (
            {"model": {"recipe": "gpt"}},
            r"^a run that goes on without this process needs data that workers read: set data\.kind, or",
        ),
        ({"steps": 0}, r"^job: steps = 0: must be at least 1"),
        ("no.toml", r"^job file no\.toml does not exist"),
    ],
)
def test_jobs_that_are_refused(cluster: Cluster, job: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        cluster.submit(job)


def test_an_unknown_run(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"^the broker has no run 'run-x': the newest are none$"):
        cluster.run("run-x")


def test_a_table_of_runs() -> None:
    one = RunStatus(run="run-1", job="<b>", state="running", step=2, steps=5, loss=1.25, seconds=3.0)
    table = RunTable([one, RunStatus(run="run-2", job="x\x1b[2J", state="failed", step=0, steps=5, cause="broken")])
    assert repr(table).splitlines()[1].split() == ["run-1", "<b>", "running", "2/5", "1.2500", "3.00", "s"]
    assert "\x1b" not in repr(table)
    assert "<td>&lt;b&gt;</td>" in table.to_html()
    assert (len(table), table[0], [run.over for run in table]) == (2, one, [False, True])
