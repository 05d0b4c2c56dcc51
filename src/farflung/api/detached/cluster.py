"""A broker to which a program submits jobs that go on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farflung.api.detached.run import DetachedRun, OnRecord, check_path
from farflung.api.detached.table import RunStatus, RunTable
from farflung.api.detached.weights import FetchedWeights
from farflung.api.result import TrainResult
from farflung.checkpoint import checkpoint_step, export_file, export_model
from farflung.client.connection import Client
from farflung.client.planned_run import PlannedRun
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.foreign_text import printable
from farflung.job import JobSpec, check_job, load_job, make_job
from farflung.job.check import check_decided
from farflung.messages.watching import Note, Planned, RecordLine, Result
from farflung.plan import Plan
from farflung.security.ticket_argument import parse_ticket
from farflung.security.user_home import own_key
from farflung.telemetry.records import EvaluationRecord, Record, RecoveryRecord, RunResult, StepRecord, committed, read_record
from farflung.units import Seconds
from farflung.worker.membership import join

__all__ = ["Cluster", "connect"]

_LOG = logging.getLogger("farflung")
#: How long ``wait`` tries to reach a broker that does not answer, in seconds.
_PATIENCE = Seconds(600.0)


def connect(ticket: str) -> Cluster:
    """Connect to the broker of a submit ticket.

    Raises:
        SecurityError: the broker refuses the ticket.
        ConnectionLost: it does not answer.
    """
    return Cluster(Client(join(parse_ticket(ticket), name="notebook", role="client", key=own_key())))


class Cluster:
    """A broker with its workers. ``close`` ends the connection, not the runs; a ``with`` block closes it as well."""

    def __init__(self, client: Client) -> None:
        self._client = client
        client.patience = _PATIENCE

    def submit(
        self,
        job: str | Path | JobSpec | Mapping[str, Any],
        *,
        steps: int | None = None,
        resume: str | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> DetachedRun:
        """Submit a job, and return its run, which starts when enough workers have joined.

        Args:
            job: a job file, a ``JobSpec``, or a mapping with the keys of a job file. Its recipe and weights are read here,
                relative to the job file or to the current folder. Its data are read by the workers.
            steps: steps of the job in all.
            resume: a run to continue from.
            say: told what goes on; the capture of a model takes seconds.

        Raises:
            InputError: the job is not one that can be submitted.
            CaptureError: the model can't become a graph.
        """
        from farflung.api.submission import bundle_job, check_data, send_weights

        spec, base = _job(job)
        if resume is not None:
            spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"resume": resume})})
        if steps is not None:
            spec = spec.model_copy(update={"steps": steps})
        check_job(spec)
        check_decided(spec)
        bundle = bundle_job(spec, base=base, say=say)
        check_data(bundle, base)
        send_weights(self._client, bundle)
        return DetachedRun(self._client.submit(bundle, say)["run"], self)

    def runs(self) -> RunTable:
        """The runs that this ticket may see, oldest first."""
        runs = self._client.status()["runs"]
        assert isinstance(runs, list)
        return RunTable([RunStatus.of(run) for run in runs])

    def run(self, name: str) -> DetachedRun:
        """The run ``name``.

        Raises:
            InputError: there is none.
        """
        self.status(name)
        return DetachedRun(name, self)

    def status(self, run: str) -> RunStatus:
        """State, steps and loss of a run.

        Raises:
            InputError: there is no such run.
        """
        runs = self.runs()
        found = next((one for one in runs if one.run == run), None)
        if found is None:
            known = ", ".join(f"{one.run} ({one.job})" for one in runs[-5:]) or "none"
            raise InputError(f"the broker has no run {run!r:.80}: the newest are {known}")
        return found

    def wait(self, run: str, on_record: OnRecord | None = None) -> TrainResult:
        """Wait until ``run`` is over. ``on_record`` is called with each record, also with those from before this call.

        The log ``farflung`` gets losses, recoveries and what the run waits for, as warnings, and a checkpoint that is older than
        the last step. The result fetches the weights of the newest checkpoint over this connection when they are first used.
        ``steps`` are those of the run.

        Raises:
            TrainingError: the run failed; the text is its cause.
            ConnectionLost: the broker does not answer for ten minutes.
        """
        records: list[Record] = []
        plan: Plan | None = None
        for message in self._client.watch(run):
            match message:
                case Planned():
                    plan = PlannedRun.of(message).plan
                case Note(text=text, detail=detail) if detail is not True:
                    _LOG.warning("%s: %s", run, printable(text))
                case RecordLine(line=line) if (record := read_record(line)) is not None:
                    records.append(record)
                    if isinstance(record, RecoveryRecord):
                        _LOG.warning("%s: %s", run, printable(str(record)))
                    elif on_record is not None:
                        on_record(record)
                case Result():
                    result = RunResult.from_json(message.result)
                    if result.status == "failed":
                        raise self._client.failure(run, f"{run} failed after {result.steps} steps: {result.cause}")
                    return self._result(run, result, plan, committed(records))
        raise InputError(f"the connection was closed before {run} was over: connect again")

    def _result(self, run: str, result: RunResult, plan: Plan | None, records: Sequence[Record]) -> TrainResult:
        weights, written = self.weights(run), checkpoint_step(result.checkpoint)
        if written is not None and written != result.steps:
            _LOG.warning("%s: its weights are those after step %s of %s, of its newest checkpoint", run, written, result.steps)
        steps = tuple(record for record in records if isinstance(record, StepRecord))
        return TrainResult(
            losses=tuple(record.loss for record in steps),
            records=steps,
            evaluations=tuple(record for record in records if isinstance(record, EvaluationRecord)),
            planned=plan,
            states=weights.states,
            aliases=weights.aliases,
            steps=result.steps,
            stopped=result.status == "stopped",
            run=run,
            checkpoint=run if result.checkpoint else "",
            seconds=result.seconds,
            sample=result.sample,
        )

    def stop(self, run: str) -> None:
        """Ask ``run`` to end after its current step."""
        self._client.stop(run)

    def export(self, run: str, path: str | Path) -> list[str]:
        """Write the weights of a run that is over, and return lines that describe what was written.

        ``path``: a file that ends with ``.safetensors``, or a folder for the model's library (``transformers``, ``timm`` or
        ``diffusers``), with its tokenizer.

        Raises:
            InputError: the run still trains, has no checkpoint, or is no model of these libraries; or ``path`` exists.
        """
        place = Path(path)
        check_path(place)
        reader, files = self._client.export(run)
        if place.suffix != ".safetensors":
            return export_model(reader, files, place)
        written = export_file(reader, place)
        return [f"{place}: {len(written)} tensors of step {reader.manifest.step}"]

    def state_dict(self, run: str) -> dict[str, Array]:
        """The weights of a run that is over, as NumPy arrays by all their names.

        Raises:
            InputError: the run still trains, or has no checkpoint.
        """
        return self.weights(run).state_dict()

    def weights(self, run: str) -> FetchedWeights:
        """The weights of a run that is over. The broker sends them when they are first used.

        They raise ``InputError`` if the run still trains or has no checkpoint.
        """
        return FetchedWeights(lambda: self._client.export(run)[0])

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _job(job: str | Path | JobSpec | Mapping[str, Any]) -> tuple[JobSpec, Path]:
    """The job, and the folder that its paths start from."""
    if isinstance(job, (str, Path)):
        return load_job(job), Path(job).resolve().parent
    spec = job if isinstance(job, JobSpec) else make_job(job)
    if spec.data.kind == "caller":
        raise InputError("a run that goes on without this process needs data that workers read: set data.kind, or call train")
    return spec, Path.cwd()
