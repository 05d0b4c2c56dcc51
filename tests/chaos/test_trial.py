"""``farflung chaos``: which faults it plans, what it refuses, and a real run under faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from farflung.api.submission import bundle_job
from farflung.chaos.faults import KINDS, ChaosReport, Fault, Recovery
from farflung.chaos.trial import Trial, TrialSettings, _Watched, plan_faults, run_trial
from farflung.chaos.wild_cluster import WildCluster
from farflung.errors import InputError, TrainingError
from farflung.job import make_job
from farflung.messages.schema import Message
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned, RecordLine
from farflung.telemetry import FAULT_POINTS, RecoveryRecord, RunFolder, StepRecord
from farflung.telemetry.records import RunResult

Lines = Sequence[StepRecord | RecoveryRecord]
STEPS = [StepRecord(step=step, loss=1.0, seconds=1.0, elapsed=1.0 + step, samples=4) for step in range(6)]
RECOVERED = RecoveryRecord(step=4, attempt=2, replayed=0, pause=1.0, elapsed=5.0, cause="worker-1 died")


def test_each_kind_and_each_process_has_its_turn() -> None:
    settings = TrialSettings(workers=2, faults=7, kinds=tuple(KINDS), hold=3.0, jump=9.0)
    faults = plan_faults(settings, 100)
    assert faults == plan_faults(settings, 100)
    assert sorted(fault.kind for fault in faults) == sorted(KINDS)
    assert {fault.victim for fault in faults} == {"worker-0", "worker-1", "broker"}
    lasts = {fault.kind: fault.seconds for fault in faults}
    assert lasts == dict.fromkeys(("stop", "partition", "one_way", "full_disk"), 3.0) | {
        "kill": 0,
        "corrupt": 0,
        "clock_jump": 9.0,
    }
    assert {fault.victim for fault in faults if fault.kind == "full_disk"} == {"broker"}
    (one,) = plan_faults(TrialSettings(faults=1, moment="broker.before_plan"), 10)
    assert (one.victim, one.moment) == ("broker", "broker.before_plan")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (TrialSettings(kinds=("fire",)), "unknown kind of fault 'fire': known are kill, stop, "),
        (TrialSettings(moment="noon"), "unknown moment 'noon': known are worker.before_forward, "),
        (
            TrialSettings(moment="worker.prepared", kinds=("corrupt",)),
            "at a named moment only kill, stop, full_disk, clock_jump can",
        ),
        (TrialSettings(faults=60), "60 faults need a job of at least 120 steps, this one has 100"),
    ],
)
def test_what_is_refused(settings: TrialSettings, text: str) -> None:
    with pytest.raises(InputError) as told:
        plan_faults(settings, 100)
    assert text in str(told.value)


def test_the_report_for_people() -> None:
    faults = [Fault(after_step=1, victim="a", kind=kind) for kind in ("kill", "stop")]
    told = tuple(Recovery(fault=fault, seconds=seconds) for fault, seconds in zip(faults, (2.0, 4.0), strict=True))
    report = ChaosReport(recoveries=told, lost=0, repeated=0, replayed=3, pauses=(1.0,))
    trial = Trial(settings=TrialSettings(), report=report, missed=(faults[0],), differing=(), seconds=(9.0, 10.0))
    text = trial.text()
    assert "samples lost 0, counted twice 0; 3 steps made again" in text
    assert "bit-equal to the undisturbed run" in text
    assert "throughput kept 90%" in text
    assert "1 faults did not happen" in text
    found = trial.document()["recovery_seconds"]
    assert (found["kill"]["max"], found["stop"]["count"], found["all"]["p50"], found["all"]["max"]) == (2.0, 1, 3.0, 4.0)


def test_every_kind_and_moment_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/chaos.md").read_text(encoding="utf-8")
    assert [name for name in (*KINDS, *FAULT_POINTS) if f"| `{name}` |" not in page] == []


class Paper:
    """A cluster on paper whose run writes ``lines``; each fault strikes at once, and what it costs follows in the lines."""

    names = ("worker-0", "worker-1")

    def __init__(self, folder: Path, records: Lines) -> None:
        self.folder, self.records, self.struck = folder, records, list[Fault]()

    def client(self) -> Paper:
        return self

    def close(self) -> None:
        return

    def submit(self, bundle: Bundle) -> dict[str, str]:
        return {"folder": str(self.folder)}

    def status(self) -> dict[str, list[dict[str, str]]]:
        return {"members": [{"name": name, "state": "active"} for name in self.names]}

    def watch(self, run: str) -> Iterator[Message]:
        yield Planned(
            plan="",
            addresses={"worker-0": "", "worker-1": ""},
            predicted=1.0,
            summary="",
            explanation="",
            first_step=0,
            attempt=1,
            recovered=False,
            relays={},
        )
        for record in self.records:
            yield RecordLine(line=record.to_line())

    def strike(self, fault: Fault, over: Callable[[float | None], None]) -> None:
        self.struck.append(fault)
        over(None if fault.moment else time.monotonic() - 100.0)


def follow(folder: Path, faults: tuple[Fault, ...], records: Lines) -> tuple[_Watched, Paper]:
    RunFolder(folder).result.write_text(RunResult(status="finished", steps=6, seconds=1.0).to_json(), encoding="utf-8")
    paper = Paper(folder, records)
    watched = _Watched(cast(WildCluster, paper), faults, lambda text: None)
    watched.play(cast(Bundle, SimpleNamespace(run="r")))
    return watched, paper


def test_how_a_run_is_struck(tmp_path: Path) -> None:
    """Each fault after its step and when the one before is over; a kill is over with the first step of the next plan."""
    gone = Fault(after_step=1, victim="worker-9", kind="kill")  # has no part in the plan
    late = Fault(after_step=2, victim="worker-1", kind="stop", moment="worker.prepared")
    watched, paper = follow(tmp_path, (gone, late), [*STEPS[:4], RECOVERED, *STEPS[4:]])
    assert [(fault.victim, fault.kind) for fault in paper.struck] == [("worker-1", "kill"), ("worker-1", "stop")]
    assert [one.fault.victim for one in watched.recoveries] == ["worker-1"]
    assert watched.missed == [late]
    with pytest.raises(TrainingError, match=r"the run was over after 1 of 2 faults: give the job more steps"):
        follow(tmp_path, (gone, late), STEPS[:4])


@pytest.mark.slow  # how many steps a run makes while a watcher is told of one depends on the machine
@pytest.mark.timeout(900)
def test_a_job_under_faults(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/t.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
    job = make_job(
        {
            "steps": 3000,
            "micro_batch_sizes": [2, 2],
            "model": {"recipe": "gpt", "args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2}},
            "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 16},
            "plan": {"planner": "equal_compute"},
            "checkpoint": {"every": 50},
        }
    )
    told: list[str] = []
    settings = TrialSettings(workers=2, faults=2, kinds=("kill", "stop"), broker=False, hold=1.0, seed=1)
    trial = run_trial(bundle_job(job, base=tmp_path), tmp_path, settings, told.append)
    assert sorted(one.fault.kind for one in trial.report.recoveries) == ["kill", "stop"], told
    assert (trial.report.lost, trial.report.repeated, trial.missed, trial.differing) == (0, 0, (), ())
    assert min(one.seconds for one in trial.report.recoveries if one.fault.kind == "stop") > 0.5
