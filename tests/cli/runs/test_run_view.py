"""What a run looks like on a terminal and in a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import cast

import pytest
from rich.console import Console

from farflung.cli.runs.live_run import say, show_run
from farflung.cli.runs.run_screen import RunScreen
from farflung.cli.runs.run_view import RunView
from farflung.client.connection import Client
from farflung.errors import TrainingError
from farflung.foreign_text import printable
from farflung.messages.schema import Message
from farflung.messages.watching import (
    CheckpointWritten,
    GeneratedText,
    JobInfo,
    MemberReady,
    Note,
    Planned,
    Planning,
    RecordLine,
    Result,
    Started,
)
from farflung.plan import LinkPlan, Plan, Replica, Stage
from farflung.plan.model import SyncPlan
from farflung.telemetry import CodecUse, EvaluationRecord, RunResult, StepRecord

WIDE = "stage  device  " + "modules of a long name  " * 6
LINE = "plan: 2 stages on laptop, office; predicted step 1.50 s (2 samples/s); bottleneck: computing on office"
TEXTS = {"summary": LINE, "explanation": WIDE}
PLAN = Plan(
    graph_hash="0" * 64,
    planner="op_fence",
    stages=(Stage(index=0, start=0, stop=1, device="laptop"), Stage(index=1, start=1, stop=2, device="office")),
    links=(LinkPlan(source=0, target=1),),
)


def step(number: int, seconds: float = 2.0) -> StepRecord:
    return StepRecord(
        step=number,
        loss=3.25,
        seconds=seconds,
        elapsed=seconds * (number + 1),
        samples=4,
        tokens=400,
        predicted_seconds=1.5,
        link_bytes={(0, 1): 1000, (1, 0): 500},
        dense_bytes={(0, 1): 4000, (1, 0): 500},
        busy_seconds={0: 0.25, 1: 0.75},
    )


def planned_as(plan: Plan) -> Planned:
    return Planned(
        plan=plan.to_json(),
        addresses={},
        predicted=1.5,
        **TEXTS,
        first_step=0,
        attempt=1,
        recovered=False,
        relays={},
    )


def frames(steps: int = 4, result: RunResult | None = None) -> Iterator[Message]:
    yield JobInfo(name="j", steps=steps, workers=2)
    yield planned_as(PLAN)
    yield Started(run="run-1", attempt=1, seconds=0.634)
    for number in range(steps):
        yield RecordLine(line=step(number).to_line())
    yield RecordLine(line=EvaluationRecord(step=steps, elapsed=9.0, loss=2.0, perplexity=7.39, accuracy=0.5).to_line())
    yield CheckpointWritten(step=steps)
    yield GeneratedText(text="def f\x1b[31m():\n\tpass")
    if result is not None:
        yield Result(result=result.to_json(), kind="")


class Watched:
    """A client whose run tells ``frames``."""

    def __init__(self, told: Iterator[Message]) -> None:
        self.told = told

    def watch(self, run: str) -> Iterator[Message]:
        return self.told


def shown(told: Iterator[Message], *, terminal: bool = False, verbose: bool = False) -> tuple[str, RunResult]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    result = show_run(cast(Client, Watched(told)), "run-1", console=console, view=RunView(verbose=verbose))
    return out.getvalue(), result


def test_the_line_has_all_that_counts() -> None:
    view = RunView("dense")
    for frame in frames():
        view.take(frame)
        if view.last is not None:
            break
    assert view.line() == (
        "dense  step 1/4  loss 3.2500  2.00 s/step (predicted 1.50 s)  6.00 s left  200 tokens/s  1.5 kB/step  "
        "slowest stage 1 office: computes 750 ms/step"
    )


def test_the_picture_shows_what_codecs_cost_and_lose() -> None:
    """The error stays until another one is measured."""
    view = RunView()
    for step, error in ((0, 0.125), (1, None)):
        uses = {(0, 1): CodecUse(encode_seconds=0.003, decode_seconds=0.001, error=error)}
        record = StepRecord(step=step, loss=1.0, seconds=1.0, elapsed=1.0, samples=1, link_bytes={(0, 1): 10}, codecs=uses)
        view.take(RecordLine(line=record.to_line()))
    console = Console(file=io.StringIO(), width=100, height=40)
    console.print(RunScreen(view))
    assert isinstance(console.file, io.StringIO)
    assert ["0", "1", "10", "B", "4", "ms", "12.5%"] in [line.split() for line in console.file.getvalue().splitlines()]


def test_it_says_when_a_slower_replica_rests() -> None:
    replicas = tuple(Replica(device=name, first=at, end=at + 1) for at, name in enumerate(("laptop", "office")))
    plan = replace(
        PLAN,
        stages=(Stage(index=0, start=0, stop=2, device="laptop", replicas=replicas),),
        links=(),
        micro_batch_sizes=(2, 2),
        sync=SyncPlan(strategy="diloco", settings=(("by_speed", True), ("sync_every", 2)), layers=((),), local_steps=(2, 1)),
    )
    view = RunView()
    view.take(planned_as(plan))
    for samples, rests in ((4, False), (2, True)):
        record = replace(step(samples), samples=samples, link_bytes={(0, 0): 10})
        view.take(RecordLine(line=record.to_line()))
        assert ("a replica rests in this step (by_speed)" in view.line()) == rests
    console = Console(file=io.StringIO(), width=100, height=40)
    console.print(RunScreen(view))
    assert isinstance(console.file, io.StringIO)
    assert "0, replicas  each other  " in console.file.getvalue()


def test_before_the_first_step_it_says_what_it_waits_for() -> None:
    view = RunView()
    assert view.line() == "waiting for workers"
    told = frames()
    view.take(next(told))
    view.take(next(told))
    assert view.line() == "preparing the workers: weights and data"
    view.take(next(told))
    assert view.line() == "waiting for the first step"


def test_the_picture_shows_each_link_and_what_its_codec_spares() -> None:
    view = RunView()
    for frame in frames():
        view.take(frame)
    console = Console(file=io.StringIO(), width=100, height=40)
    console.print(RunScreen(view))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert rows[0] == ["j", "2", "machines"]
    assert rows[1][:2] == ["step", "4/4"]
    assert set(console.file.getvalue().splitlines()[2].strip()) == {"━"}, "the bar has a line of its own"
    assert rows[3] == ["loss", "3.2500", "▁▁▁▁"]
    assert ["office", "1", "750", "ms", "38%", "━━━━━━━━"] in rows
    assert ["0", "laptop", "1", "office", "1", "kB", "4", "kB", "(4.0", "x)"] in rows
    assert ["1", "office", "0", "laptop", "500", "B"] in rows


def test_a_file_gets_whole_lines_however_long() -> None:
    text, result = shown(frames(result=RunResult(status="finished", steps=4, seconds=8.0, checkpoint="/c" * 60)))
    lines = text.splitlines()
    assert lines[0] == LINE
    assert "evaluation after step 4: loss 2.0000, perplexity 7.39, accuracy 50.0%" in lines
    assert lines[-1] == f"run-1: finished after 4 steps in 8.00 s; checkpoint {'/c' * 60}"
    assert result.steps == 4


def test_the_plan_is_one_line_and_its_tables_and_details_need_verbose() -> None:
    done = RunResult(status="finished", steps=4, seconds=8.0)
    notes = [
        Note(text="a: 2 copies of the state: 1.79 MB", detail=True),
        Note(text="a died"),
    ]
    plain, _ = shown(chain(notes, frames(result=done)))
    assert plain.splitlines()[:2] == ["a died", LINE]
    assert WIDE not in plain
    assert "copies" not in plain
    verbose, _ = shown(chain(notes, frames(result=done)), verbose=True)
    assert WIDE in verbose.splitlines()
    assert "a: 2 copies of the state: 1.79 MB" in verbose


def test_long_runs_print_a_line_for_every_tenth() -> None:
    text, _ = shown(frames(95, RunResult(status="finished", steps=95, seconds=1.0)))
    assert sum(line.startswith("step ") for line in text.splitlines()) == 10


def test_a_terminal_keeps_the_last_line() -> None:
    text, _ = shown(frames(result=RunResult(status="finished", steps=4, seconds=8.0)), terminal=True)
    assert "step 4/4" in text.replace("\x1b[2K", "").splitlines()[-2]


def test_generated_text_cannot_steer_the_terminal() -> None:
    text, _ = shown(frames(result=RunResult(status="finished", steps=4, seconds=8.0)))
    assert "\x1b" not in text
    assert "def f\N{REPLACEMENT CHARACTER}[31m():\n    pass" in text
    assert printable("a\rb\x00") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


def test_a_failed_run_raises_its_cause() -> None:
    failed = RunResult(status="failed", steps=2, seconds=1.0, cause="worker a is gone")
    with pytest.raises(TrainingError, match="run-1 failed after 2 steps: worker a is gone"):
        shown(frames(result=failed))


def test_a_broker_that_falls_silent_is_an_error() -> None:
    with pytest.raises(TrainingError, match="sends no more news of this run; see farflung status"):
        shown(frames())


def test_each_step_is_told_once() -> None:
    seen: list[int] = []
    told = Watched(frames(result=RunResult(status="stopped", steps=4, seconds=8.0)))
    show_run(cast(Client, told), "run-1", console=Console(file=io.StringIO()), on_step=lambda record: seen.append(record.step))
    assert seen == [0, 1, 2, 3]


def test_say_takes_brackets_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=20)
    say(console, "a [bold]word[/bold] " * 5)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "a [bold]word[/bold] " * 5 + "\n"


def test_each_phase_before_the_first_step_is_shown_while_it_lasts() -> None:
    view = RunView()
    planned, started = list(frames())[1:3]

    def shown_after(frame: Message) -> str:
        view.take(frame)
        console = Console(file=io.StringIO(), width=100, height=40)
        console.print(RunScreen(view))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "planning for a, b, 0 s" in shown_after(Planning(members=("a", "b")))
    assert "preparing the workers: weights and data" in shown_after(planned)
    assert "preparing the workers: 1 of 2 are ready" in shown_after(MemberReady(name="laptop"))
    assert "waiting for the first step" in shown_after(started)
    view.steps = 2
    assert "waiting" not in shown_after(RecordLine(line=step(0).to_line()))
    assert "planning for a, 0 s" in shown_after(Planning(members=("a",))), "after a loss, below the last step"
    assert "finishing: last checkpoint and evaluation" in shown_after(RecordLine(line=step(1).to_line()))


def test_a_file_gets_a_line_when_the_workers_are_ready() -> None:
    text, _ = shown(frames(result=RunResult(status="finished", steps=4, seconds=8.0)))
    assert text.splitlines()[1] == "the workers are ready after 634 ms; training starts", "by the broker's clock"
    assert text.count("training starts") == 1


def test_ctrl_c_leaves_no_live_line() -> None:
    def interrupted() -> Iterator[Message]:
        yield from list(frames())[:3]
        raise KeyboardInterrupt

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with pytest.raises(KeyboardInterrupt):
        show_run(cast(Client, Watched(interrupted())), "run-1", console=console)
    _, left = out.getvalue().split("\x1b[?1049l")
    assert left.replace("\x1b[?25h", "").splitlines() == [LINE, "the workers are ready after 634 ms; training starts"]
