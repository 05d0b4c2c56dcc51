"""What a run reports about itself: one record per step and per evaluation, and one result at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from farflung.errors import DataError
from farflung.telemetry.events import Value, encode_line
from farflung.units import counted

__all__ = [
    "CodecUse",
    "EvaluationRecord",
    "Link",
    "Record",
    "RecoveryRecord",
    "RelayedRecord",
    "RunResult",
    "StepRecord",
    "committed",
    "read_record",
]

#: Stage that sends, stage that receives; gradients travel from the later stage to the earlier one.
Link = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecUse:
    """What codecs took on a link in a step: seconds of all encoding at the sender and of all decoding at the receiver.

    ``error``: mean relative error (2-norm) of the values for which it was measured (None: of none in this step).
    """

    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    error: float | None = None

    def plus(self, other: CodecUse) -> CodecUse:
        """Both ends together."""
        known = [one.error for one in (self, other) if one.error is not None]
        return CodecUse(
            encode_seconds=self.encode_seconds + other.encode_seconds,
            decode_seconds=self.decode_seconds + other.decode_seconds,
            error=sum(known) / len(known) if known else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step.

    ``loss``: mean over the step's micro-batches by their weights. ``seconds``: from the previous step's end to this one's;
    ``elapsed``: since training began (both on the wall clock of the broker). ``samples``, ``tokens``: in this step (tokens 0:
    the data has none). ``link_bytes``: payload bytes on each link in this step; ``dense_bytes``: what they would have been
    without a codec. ``busy_seconds``: computing time of each stage. ``predicted_seconds``: the plan's estimate of ``seconds``.
    ``learning_rate``: of the default group. ``skipped``: the loss was not a number and nothing was applied. ``divergence``: under
    a sync strategy, the largest relative distance of a replica's parameters from the mean, in a step that averaged some.
    ``excluded``: workers whose gradients were not finite, so that a robust rule left them out; ``blamed``: the origins.
    ``codecs``: what they took on each link that has one. ``grad_norm``: the norm of all gradients before clipping (None: the job
    does not need it, so nobody computed it). ``helped``: samples and computing seconds of helpers, by (stage, helper).
    """

    step: int
    loss: float
    seconds: float
    elapsed: float
    samples: int
    tokens: int = 0
    learning_rate: float = 0.0
    predicted_seconds: float | None = None
    link_bytes: Mapping[Link, int] = field(default_factory=dict)
    dense_bytes: Mapping[Link, int] = field(default_factory=dict)
    busy_seconds: Mapping[int, float] = field(default_factory=dict)
    skipped: bool = False
    divergence: float | None = None
    codecs: Mapping[Link, CodecUse] = field(default_factory=dict)
    grad_norm: float | None = None
    helped: Mapping[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()

    @property
    def samples_per_second(self) -> float:
        """Samples per second of this step (0 for a step without duration)."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes on all links in this step."""
        return sum(self.link_bytes.values())

    @property
    def slowest_stage(self) -> int | None:
        """The stage that computed longest, None if nothing is known."""
        return max(self.busy_seconds, key=lambda stage: self.busy_seconds[stage]) if self.busy_seconds else None

    def fields(self) -> dict[str, Value]:
        """The fields of this record's event: ``telemetry.emit("step", **record.fields())``."""
        return {
            "step": self.step,
            "loss": self.loss,
            "seconds": self.seconds,
            "elapsed": self.elapsed,
            "samples": self.samples,
            "samples_per_second": self.samples_per_second,
            "tokens": self.tokens,
            "learning_rate": self.learning_rate,
            "predicted_seconds": self.predicted_seconds,
            "link_bytes": _link_table(self.link_bytes),
            "dense_bytes": _link_table(self.dense_bytes),
            "busy_seconds": {str(stage): seconds for stage, seconds in self.busy_seconds.items()},
            "skipped": self.skipped,
            **({} if self.divergence is None else {"divergence": self.divergence}),
            **({"codecs": _codec_table(self.codecs)} if self.codecs else {}),
            **({} if self.grad_norm is None else {"grad_norm": self.grad_norm}),
            **({"helped": [[*key, *work] for key, work in self.helped.items()]} if self.helped else {}),
            **({"excluded": list(self.excluded), "blamed": list(self.blamed)} if self.excluded else {}),
        }

    def to_line(self) -> str:
        """One line of ``metrics.jsonl``."""
        return encode_line({"kind": "step", **self.fields()})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation, made after ``step`` steps: mean loss and, where they have a meaning, perplexity and accuracy (0 to 1).

    ``metrics``: the means of the caller's own metrics over the batches, by name.
    """

    step: int
    elapsed: float
    loss: float
    perplexity: float | None = None
    accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, Value]:
        """The fields of this record's event: ``telemetry.emit("evaluation", **record.fields())``."""
        return {
            "step": self.step,
            "elapsed": self.elapsed,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "accuracy": self.accuracy,
            **({"metrics": dict(self.metrics)} if self.metrics else {}),
        }

    def to_line(self) -> str:
        """One line of ``metrics.jsonl``."""
        return encode_line({"kind": "evaluation", **self.fields()})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord:
    """The run goes on after a loss, from ``step`` on: earlier records of that step and later ones no longer count.

    ``cause``: who or what was lost. ``replayed``: how many steps are made again. ``pause``: seconds from the loss until training
    went on. ``devices``: who goes on. ``attempt``: the plan's number, from 2 on. ``elapsed`` as in ``StepRecord``.
    ``source``: what it goes on from: ``memory`` of workers that hold all stages, ``copies`` (of some stages copies were left),
    ``checkpoint``, or ``start``. ``moved``: bytes of states that went from worker to worker.
    """

    step: int
    attempt: int
    replayed: int
    pause: float
    elapsed: float
    cause: str = ""
    devices: tuple[str, ...] = ()
    source: str = "checkpoint"
    moved: int = 0

    def to_line(self) -> str:
        """One line of ``metrics.jsonl``."""
        fields: dict[str, Value] = {
            "step": self.step,
            "attempt": self.attempt,
            "replayed": self.replayed,
            "pause": self.pause,
            "elapsed": self.elapsed,
            "cause": self.cause,
            "devices": list(self.devices),
            "source": self.source,
            "moved": self.moved,
        }
        return encode_line({"kind": "recovery", **fields})

    @property
    def _source(self) -> str:
        return {"memory": "the state in memory", "copies": "copies of the state", "start": "the initial weights"}.get(
            self.source, f"the checkpoint after step {self.step}"
        )

    def __str__(self) -> str:
        """For people, in one line."""
        again = (
            f"{counted(self.replayed, 'step')} repeated, from step {self.step}"
            if self.replayed
            else f"no step repeated (step {self.step})"
        )
        who = ", ".join(self.devices)
        return f"resumed after {self.pause:.1f} s on {who}, from {self._source}; {again}"


Record = StepRecord | EvaluationRecord | RecoveryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedRecord:
    """``relay`` carried ``nbytes`` from ``source`` to ``target`` for this run: encrypted bytes, heartbeats included."""

    relay: str
    source: str
    target: str
    nbytes: int

    def to_line(self) -> str:
        """One line of ``relayed.jsonl``."""
        return encode_line({"relay": self.relay, "from": self.source, "to": self.target, "bytes": self.nbytes})

    @classmethod
    def from_line(cls, line: str) -> RelayedRecord:
        """Read what ``to_line`` wrote.

        Raises:
            DataError: it is something else.
        """
        body = _object(line, "line about a relay")
        names = {key: str(body.get(name, "")) for key, name in (("relay", "relay"), ("source", "from"), ("target", "to"))}
        return cls(**names, nbytes=_whole(body, "bytes"))


def committed(records: Iterable[Record]) -> list[Record]:
    """``records`` without the steps and evaluations that a later recovery made anew.

    An evaluation belongs to the steps before it: one after ``step`` steps is made again as well when the run goes on from there.
    """
    kept: list[Record] = []
    for record in records:
        if isinstance(record, RecoveryRecord):
            kept = [one for one in kept if isinstance(one, RecoveryRecord) or one.step < record.step]
        kept.append(record)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended; a run folder without one was cut short.

    ``cause`` says why it did not finish, in one line. ``checkpoint`` is the path of the last complete one. ``sample`` is
    generated text.
    """

    status: Literal["finished", "stopped", "failed"]
    steps: int
    seconds: float
    cause: str = ""
    checkpoint: str = ""
    sample: str = ""

    def to_json(self) -> str:
        """The content of ``result.json``."""
        body = {"status": self.status, "steps": self.steps, "seconds": self.seconds}
        return encode_line(body | {"cause": self.cause, "checkpoint": self.checkpoint, "sample": self.sample})

    @classmethod
    def from_json(cls, text: str) -> RunResult:
        """Read what ``to_json`` wrote.

        Raises:
            DataError: the text is not a result.
        """
        body = _object(text, "result")
        status = body.get("status")
        if status not in ("finished", "stopped", "failed"):
            raise DataError(f"a result's status must be finished, stopped or failed, got {status!r}; the file is damaged")
        texts = {key: str(body.get(key, "")) for key in ("cause", "checkpoint", "sample")}
        return cls(status=status, steps=_whole(body, "steps"), seconds=_number(body, "seconds"), **texts)


def read_record(line: str) -> Record | None:
    """The record in one line of metrics (None: an event of another kind).

    Raises:
        DataError: the line is not JSON, or a field is missing or has a wrong type.
    """
    body = _object(line, "metrics line")
    if body.get("kind") == "evaluation":
        return EvaluationRecord(
            step=_whole(body, "step"),
            elapsed=_number(body, "elapsed"),
            loss=_number(body, "loss"),
            perplexity=_optional(body, "perplexity"),
            accuracy=_optional(body, "accuracy"),
            metrics={name: _number(table, name) for table in [_table(body, "metrics")] for name in table},
        )
    if body.get("kind") == "recovery":
        return _recovery(body)
    if body.get("kind") != "step":
        return None
    return StepRecord(
        step=_whole(body, "step"),
        loss=_number(body, "loss"),
        seconds=_number(body, "seconds"),
        elapsed=_number(body, "elapsed"),
        samples=_whole(body, "samples"),
        tokens=_whole(body, "tokens"),
        learning_rate=_number(body, "learning_rate"),
        predicted_seconds=_optional(body, "predicted_seconds"),
        link_bytes=_links(body, "link_bytes"),
        dense_bytes=_links(body, "dense_bytes"),
        busy_seconds={_stage(key): _number(table, key) for table in [_table(body, "busy_seconds")] for key in table},
        skipped=body.get("skipped") is True,
        divergence=_optional(body, "divergence"),
        codecs=_codecs(body) if "codecs" in body else {},
        grad_norm=_optional(body, "grad_norm"),
        helped=_helped(body) if "helped" in body else {},
        excluded=_names(body, "excluded"),
        blamed=_names(body, "blamed"),
    )


def _recovery(body: Mapping[str, Any]) -> RecoveryRecord:
    return RecoveryRecord(
        source=str(body.get("source", "checkpoint")),
        moved=_whole(body, "moved") if "moved" in body else 0,
        step=_whole(body, "step"),
        attempt=_whole(body, "attempt"),
        replayed=_whole(body, "replayed"),
        pause=_number(body, "pause"),
        elapsed=_number(body, "elapsed"),
        cause=str(body.get("cause", "")),
        devices=_names(body, "devices"),
    )


def _link_table(table: Mapping[Link, int]) -> dict[str, Value]:
    return {f"{source}->{target}": count for (source, target), count in table.items()}


def _codec_table(table: Mapping[Link, CodecUse]) -> dict[str, Value]:
    return {
        f"{source}->{target}": {"encode": use.encode_seconds, "decode": use.decode_seconds, "error": use.error}
        for (source, target), use in table.items()
    }


def _codecs(body: Mapping[str, Any]) -> dict[Link, CodecUse]:
    uses = _table(body, "codecs")
    return {
        _link(key): CodecUse(
            encode_seconds=_number(use, "encode"), decode_seconds=_number(use, "decode"), error=_optional(use, "error")
        )
        for key, use in ((key, _table(uses, key)) for key in uses)
    }


def _helped(body: Mapping[str, Any]) -> dict[tuple[int, str], tuple[int, float]]:
    try:
        return {(int(stage), str(name)): (int(samples), float(seconds)) for stage, name, samples, seconds in body["helped"]}
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"helped must be a list of rows, got {body['helped']!r:.60}; the file is damaged") from None


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"this {what} is not JSON ({error}): {text[:60]!r}") from None
    if not isinstance(body, dict):
        raise DataError(f"a {what} must be a JSON object, got {text[:60]!r}")
    return body


def _number(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= 1 << 1024:
        raise DataError(f"{key} must be a number, got {value!r}; the file is damaged or of another version")
    return float(value)


def _optional(body: Mapping[str, Any], key: str) -> float | None:
    return None if body.get(key) is None else _number(body, key)


def _names(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key, ())
    if not isinstance(value, list | tuple):
        raise DataError(f"{key} must be a list, got {value!r}; the file is damaged or of another version")
    return tuple(str(name) for name in value)


def _whole(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{key} must be a whole number, got {value!r}; the file is damaged or of another version")
    return value


def _table(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key, {})
    if not isinstance(value, dict):
        raise DataError(f"{key} must be an object, got {value!r}; the file is damaged or of another version")
    return value


def _stage(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise DataError(f"a stage must be a whole number, got {text!r}; the file is damaged or of another version")
    return int(text)


def _links(body: Mapping[str, Any], key: str) -> dict[Link, int]:
    links: dict[Link, int] = {}
    table = _table(body, key)
    for text in table:
        links[_link(text)] = _whole(table, text)
    return links


def _link(text: str) -> Link:
    source, arrow, target = text.partition("->")
    if not arrow:
        raise DataError(f"a link must read source->target, got {text!r}; the file is damaged or of another version")
    return _stage(source), _stage(target)
