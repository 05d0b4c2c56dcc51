"""``chaos``: workers and the broker are killed while a run goes on; is anything lost, and how long does it stand still?

The same job in four cases, which differ in what protects it: ``replicas`` (two of each stage: data parallel x pipeline),
``copies`` (a pipeline whose stages are copied to other workers), ``checkpoint`` (a pipeline without copies) and ``hybrid`` (half
of the workers are unreliable and help the others). Each is compared with one undisturbed run, because plans change no bit. Then
the same pipeline with and without protection, in turns, nobody killed.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.alternation import alternation
from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from farflung.api.submission import bundle_job
from farflung.chaos.faults import ChaosReport, Recovery, draw_faults, judge
from farflung.chaos.kills import BROKER, HELPED, differing_tensors, play
from farflung.chaos.local_cluster import LocalCluster
from farflung.checkpoint import CheckpointReader, CheckpointStore, pack
from farflung.errors import InputError
from farflung.ids import new_id
from farflung.job import JobSpec, make_job
from farflung.messages.submission import Bundle
from farflung.step.stages.copy_coding import Coder, Version
from farflung.telemetry import RunFolder, StepRecord

__all__ = ["Chaos", "ChaosSettings"]


#: What protects the run of each case: settings of the job.
CASES: Mapping[str, Mapping[str, Any]] = {
    "replicas": {"plan": {"planner": "equal_compute", "replicas": 2}},
    "copies": {},
    "checkpoint": {"copies": 0},
    "hybrid": {"plan": {"planner": "equal_compute", "helpers": True}},
}
#: What names of optimizer slots begin with.
_SLOTS = next(iter(pack({}, {"": np.empty(0)})))
_LINK = re.compile(r"link to \S+: ([0-9.]+) (\w?)B sent")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSettings(Settings):
    """``kills`` over all ``cases``, each of a worker or of the broker, every ``spacing`` steps.

    ``every``: steps between checkpoints. ``copy_every``: steps between copies. ``calm_steps``: of each run that measures what the
    protection costs (0: none), ``calm_turns`` of them with and as many without, on ``calm_workers`` workers: no more than
    there are cores, or copies take time from computing that they would not take on machines of their own.
    """

    workers: int = 4
    kills: int = 32
    cases: tuple[str, ...] = tuple(CASES)
    spacing: int = 200
    every: int = 50
    copy_every: int = 10
    calm_steps: int = bounded(150)
    calm_turns: int = 4
    calm_workers: int = 2
    width: int = 64
    layers: int = 4
    broker: bool = True


class Chaos:
    """The same job on processes of this machine: undisturbed, and under kills in each case."""

    name = "chaos"
    summary = "workers and broker killed at random: recovery by what protects the run, samples lost, weights, cost undisturbed"

    def settings(self, quick: bool) -> ChaosSettings:
        """Quick: two workers, two kills, one case."""
        small = {"workers": 2, "kills": 2, "cases": ("copies",), "spacing": 200, "every": 5, "calm_steps": 0}
        return ChaosSettings(quick=True, width=16, layers=2, **small) if quick else ChaosSettings()  # type: ignore[arg-type]

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, ChaosSettings)
        unknown = [case for case in settings.cases if case not in CASES]
        if unknown or not settings.cases:
            raise InputError(f"unknown case {unknown[0] if unknown else ''!r}: known are {', '.join(CASES)}")
        names = [f"worker-{index}" for index in range(settings.workers)]
        with tempfile.TemporaryDirectory(prefix="farflung-chaos-") as place:
            folder = Path(place)
            (folder / "corpus").mkdir()
            (folder / "corpus" / "text.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
            bundle = bundle_job(_job(settings, settings.spacing * _share(settings)), base=folder)
            with LocalCluster(folder / "calm", names, data=folder) as calm:
                truth, calm_seconds, _ = play(calm, bundle, (), say)
            outcomes = [_disturbed(settings, bundle, case, (folder, truth), say) for case in settings.cases]
            cost = _cost(settings, bundle, folder, names[: settings.calm_workers], say) if settings.calm_steps else {}
            cost |= {"coding": coded_copies(truth)} if cost else {}
        return _report(settings, outcomes, calm_seconds, cost)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """One case under kills. ``returns``: of brokers: seconds until one listens again, and then until all workers are back."""

    case: str
    found: ChaosReport
    differing: list[str]
    seconds: float
    returns: tuple[tuple[float, float], ...] = ()


def _share(settings: ChaosSettings) -> int:
    """Kills of one case."""
    return -(-settings.kills // len(settings.cases))


def _job(settings: ChaosSettings, steps: int) -> JobSpec:
    args = {"vocab": 256, "sequence": 32, "layers": settings.layers, "width": settings.width, "heads": 2}
    return make_job(
        {
            "name": "chaos",
            "seed": settings.seed,
            "steps": steps,
            "micro_batch_sizes": [2, 2, 2, 2],
            "model": {"recipe": "gpt", "args": args},
            "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 32},
            "optimizer": {"name": "adamw", "lr": 1e-3},
            "plan": {"planner": "equal_compute"},
            "checkpoint": {"every": settings.every},
            "copy_every": settings.copy_every,
        }
    )


def _as(bundle: Bundle, **changes: Any) -> Bundle:
    """The same graphs under a job with other settings."""
    document = bundle.job.model_dump(mode="json", exclude_unset=True)
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, Mapping) else value
    return replace(bundle, run=new_id("run"), job=make_job(document))


def _disturbed(settings: ChaosSettings, bundle: Bundle, case: str, where: tuple[Path, Path], say: Say) -> _Outcome:
    folder, truth = where
    names = [f"worker-{index}" for index in range(settings.workers)]
    job = bundle.job
    faults = draw_faults(settings.seed, _share(settings), job.steps, [*names, *([BROKER] if settings.broker else [])])
    say(f"case {case}: {len(faults)} kills over {job.steps} steps")
    stay = len(names) - len(names) // 2 if case == "hybrid" else len(names)
    returns: list[tuple[float, float]] = []
    with LocalCluster(folder / case, names[:stay], data=folder, unreliable=names[stay:]) as wild:
        found, seconds, recoveries = play(wild, _as(bundle, **CASES[case]), faults, say, returns=returns)
    report = judge(list(RunFolder(found).records()), recoveries, steps=job.steps, samples=sum(job.micro_batch_sizes))
    return _Outcome(case=case, found=report, differing=differing_tensors(truth, found), seconds=seconds, returns=tuple(returns))


def _cost(settings: ChaosSettings, bundle: Bundle, folder: Path, names: Sequence[str], say: Say) -> dict[str, Any]:
    """Step time and bytes on links of the pipeline with protection and without, in turns; checkpoints are left out of both.

    Protected as by default: the cadence of copies is the plan's. A turn of one kind stands beside a turn of the other, so slow
    changes of the machine cancel.
    """
    plain = {"steps": settings.calm_steps, "checkpoint": {"every": 0, "at_end": False, "recover_every": 0.0}, "copy_every": None}
    kinds = {"protected": plain, "bare": {**plain, "on_loss": "stop"}}
    steps: dict[str, list[float]] = {kind: [] for kind in kinds}
    sent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(settings.calm_turns):
        for kind, changes in list(kinds.items())[:: 1 if turn % 2 else -1]:
            with LocalCluster(folder / f"{kind}-{turn}", names, data=folder) as calm:
                root, _, _ = play(calm, _as(bundle, **changes), (), say)
                calm.close()
                sent[kind].append(sum(_bytes(calm.log(name)) for name in names))
            records = [record for record in RunFolder(root).committed() if isinstance(record, StepRecord)]
            steps[kind].append(statistics.median(record.seconds for record in records[len(records) // 10 :]))
    found = alternation(steps["protected"], steps["bare"], settings.seed)
    return {
        "step_seconds": {kind: statistics.median(values) for kind, values in steps.items()},
        "turns_seconds": steps,
        "link_bytes": {kind: statistics.median(values) for kind, values in sent.items()},
        "step_ratio": 1.0 + found.change,
        "step_interval": (found.low, found.high),
        "bytes_ratio": statistics.median(sent["protected"]) / statistics.median(sent["bare"]),
    }


def coded_copies(folder: Path) -> dict[str, Any]:
    """What coding leaves of the states of the run in ``folder``, from its last checkpoint but one to the last.

    As copies are sent: alone (a first round), and against the version before; by kind of tensor for the latter.
    """
    older, newer = sorted(CheckpointStore(folder / "checkpoints").steps())[-2:]
    states = []
    for step in (older, newer):
        reader = CheckpointReader.from_folder(folder / "checkpoints", step)
        states.append(reader.read(reader.manifest.home))
    before, after = states
    kinds: dict[str, dict[str, Any]] = {}
    for name, array in after.items():
        kinds.setdefault(name.split("/")[1] if name.startswith(_SLOTS) else "parameters", {})[name] = array
    alone, by_kind, coder = Coder(), {kind: Coder() for kind in kinds}, Coder()
    begin = time.perf_counter()
    _code(coder, after, (older, before))
    seconds = time.perf_counter() - begin
    _code(alone, after, None)
    for kind, arrays in kinds.items():
        _code(by_kind[kind], arrays, (older, before))
    return {
        "steps_between": newer - older,
        "bytes": coder.raw,
        "ratio": coder.sent / coder.raw,
        "ratio_alone": alone.sent / alone.raw,
        "ratio_by_kind": {kind: one.sent / one.raw for kind, one in by_kind.items()},
        "bytes_per_second": coder.raw / seconds,
    }


def _code(coder: Coder, arrays: Mapping[str, Any], base: Version | None) -> None:
    for make in coder.pieces("run", arrays, base):
        make(0.0)


def _bytes(log: str) -> float:
    """What a worker said that it sent on its links (three digits)."""
    return sum(float(value) * _SCALE[prefix] for value, prefix in _LINK.findall(log))


def _report(settings: ChaosSettings, outcomes: Sequence[_Outcome], calm_seconds: float, cost: Mapping[str, Any]) -> Report:
    workers = [f"worker-{index}" for index in range(settings.workers)]
    rows: list[tuple[object, ...]] = []
    table: dict[str, dict[str, Any]] = {}
    recoveries = [one for outcome in outcomes for one in outcome.found.recoveries]
    for who, chosen in _groups(recoveries, workers):
        found = replace(outcomes[0].found, recoveries=tuple(chosen))
        row = (who, len(chosen), *(found.percentile(p) for p in (0.5, 0.95, 1.0)))
        rows.append(row)
        table[who] = dict(zip(("count", "p50", "p95", "max"), row[1:], strict=True))
    differing = [name for outcome in outcomes for name in outcome.differing]
    wrong = sum(outcome.found.lost + outcome.found.repeated for outcome in outcomes)
    figures = {
        "faults": [
            {"case": o.case, "step": r.fault.after_step, "victim": r.fault.victim, "seconds": r.seconds, "source": r.source}
            for o in outcomes
            for r in o.found.recoveries
        ],
        "recovery_seconds": table,
        "pauses_seconds": {outcome.case: list(outcome.found.pauses) for outcome in outcomes},
        "broker_returns": [
            {"case": outcome.case, "listens_after": listens, "workers_back_after": back}
            for outcome in outcomes
            for listens, back in outcome.returns
        ],
        "steps_replayed": {outcome.case: outcome.found.replayed for outcome in outcomes},
        "samples_lost": sum(outcome.found.lost for outcome in outcomes),
        "samples_repeated": sum(outcome.found.repeated for outcome in outcomes),
        "tensors_differing": differing,
        "seconds_undisturbed": calm_seconds,
        "seconds_under_kills": {outcome.case: outcome.seconds for outcome in outcomes},
        "protection": dict(cost),
    }
    kills = _share(settings) * len(outcomes)
    exact = (
        ("weights and optimizer against the undisturbed run", "bit-equal", f"{len(differing)} tensors differ", not differing),
        ("samples lost or counted twice", "0", str(wrong), wrong == 0),
        ("kills survived", str(kills), str(len(recoveries)), len(recoveries) == kills),
    )
    checks = [Check(name=name, target=target, measured=seen, passed=good) for name, target, seen, good in exact]
    back = [seconds for outcome in outcomes for _, seconds in outcome.returns]
    if back:
        checks.append(
            Check(
                name="a broker that was started again listens: until all workers are back, median",
                target="3 s",
                measured=f"{statistics.median(back):.2f} s (at most {max(back):.2f})",
                passed=statistics.median(back) <= 3.0,
            )
        )
    return Report(
        figures=figures, columns=("killed", "times", "p50 s", "p95 s", "max s"), rows=rows, checks=[*checks, *_paces(table, cost)]
    )


def _groups(recoveries: Sequence[Recovery], workers: Sequence[str]) -> Iterator[tuple[str, list[Recovery]]]:
    """Recoveries after the death of a worker by what the run went on from, and those after the broker's."""
    for source in ("memory", "copies", "checkpoint", "start"):
        chosen = [one for one in recoveries if one.fault.victim in workers and one.source == source]
        if chosen:
            yield f"worker, from {source}", chosen
    helped = [one for one in recoveries if one.source == HELPED]
    if helped:
        yield "helper", helped
    yield BROKER, [one for one in recoveries if one.fault.victim == BROKER]


def _paces(table: Mapping[str, Mapping[str, Any]], cost: Mapping[str, Any]) -> Iterator[Check]:
    """Times against their targets."""
    memory = table.get("worker, from memory", {}).get("p50")
    if memory is not None:
        step = cost["step_seconds"]["protected"] if cost else 0.0
        yield Check(
            name="SIGKILL to the next step, a live replica has the stage: median",
            target="2 s plus one step",
            measured=f"{memory:.2f} s",
            passed=memory <= 2.0 + step,
        )
    if cost:
        for name, key, limit in (("step time", "step_ratio", 1.03), ("bytes on links", "bytes_ratio", 1.10)):
            measured, target = f"{cost[key] - 1.0:+.1%}", f"under {limit - 1.0:.0%}"
            if key == "step_ratio":
                measured += " ({:+.1%} to {:+.1%})".format(*cost["step_interval"])
            yield Check(name=f"cost of the protection: {name}", target=target, measured=measured, passed=cost[key] < limit)
