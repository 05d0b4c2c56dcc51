"""A broker and workers in this process, over real connections on the loopback; and the jobs that tests hand in."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from farflung.api.submission import bundle_job, send_weights
from farflung.broker.process import Broker
from farflung.broker.records.run_folders import StorageSettings
from farflung.checkpoint import CheckpointReader
from farflung.client.connection import Client
from farflung.data import Loader, open_source
from farflung.engines.base import Array
from farflung.errors import ConnectionLost
from farflung.ids import new_id
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.job.rates import rates
from farflung.messages.submission import Bundle
from farflung.security import Ticket, kept_key
from farflung.telemetry import Injector, injecting
from farflung.telemetry.records import EvaluationRecord, RunResult, StepRecord, read_record
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from farflung.worker.observer import WorkObserver
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from tests.support.commands.job_files import job_document
from tests.support.network.quiet import PATIENCE, until
from tests.support.runs.watched_runs import watched

LINES = ("def answer(question):", "    return len(question) % 7", "", "class Thing:", "    size = 3  # of them", "")


def text_folder(place: Path) -> Path:
    """Some kilobytes of text that look like a program."""
    folder = place / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        lines = [f"{LINES[(i * 5 + number) % len(LINES)]}  # {i * number % 97}" for i in range(120)]
        (folder / f"part{number}.txt").write_text("\n".join(lines))
    return folder


def text_job(**changes: Any) -> JobSpec:
    """A tiny GPT on bytes; ``changes`` are top-level keys of the job file (tables are merged)."""
    return make_job(job_document(**changes))


_captured: dict[str, Bundle] = {}


def captured(job: JobSpec, base: Path) -> Bundle:
    """``bundle_job``, but each model is captured once for all tests of a process."""
    groups = [group for group in job.optimizer.groups if group.frozen]
    forms = (job.evaluate.batches > 0, job.generate.tokens > 0, set(job.micro_batch_sizes), groups)
    assert job.model is not None
    # files of the submitter that a bundle is made of lie below the folder
    own = (":" in job.model.recipe, "folder" in job.model.args, job.weights.path, job.data.tokenizer not in ("bytes", "chars"))
    place = base if any(own) else None
    key = f"{job.model.model_dump_json()} {job.weights.model_dump_json(exclude_unset=True)} {forms} {place}"
    if key not in _captured:
        _captured[key] = bundle_job(job, base=base)
    found = _captured[key]  # where the first weights come from is known after the capture
    return replace(found, run=new_id("run"), job=job.model_copy(update={"weights": found.job.weights}))


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What the broker told of a run."""

    run: str
    folder: Path
    result: RunResult
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    devices: tuple[str, ...] = ()
    frames: list[Frame] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.steps]

    def reader(self, step: int | None = None) -> CheckpointReader:
        return CheckpointReader.from_folder(self.folder / "checkpoints", step)

    def tensors(self, step: int | None = None) -> dict[str, Array]:
        """All tensors of a checkpoint, optimizer slots included."""
        reader = self.reader(step)
        return reader.read(reader.manifest.home)


class Leash:
    """An injector that holds workers before a step until who follows the run has seen the record of the second step before it.

    So what a test does at a record happens while the run is there, however late the test's thread comes to run.
    """

    def __init__(self, then: Injector | None) -> None:
        """``then``: another injector, which is asked afterwards."""
        self._then = then
        self._changed = threading.Condition()
        self._end = 2

    def __call__(self, name: str, facts: Mapping[str, int | str]) -> None:
        if name == "worker.before_forward":
            with self._changed:
                self._changed.wait_for(lambda: int(facts["step"]) < self._end)
        if self._then is not None:
            self._then(name, facts)

    def seen(self, step: int) -> None:
        """The record of ``step`` was seen, and all was done that is done at it."""
        with self._changed:
            self._end = max(self._end, step + 3)
            self._changed.notify_all()

    def drop(self) -> None:
        """Nobody follows any more."""
        with self._changed:
            self._end = sys.maxsize
            self._changed.notify_all()


class Loopback:
    """A broker, in a folder of its own, with workers called a, b, c, ... whose data lie in ``home``."""

    def __init__(
        self,
        home: Path,
        workers: int,
        *,
        memory: Mapping[str, float] | None = None,
        folder: str = "broker",
        say: Callable[[str], None] = lambda line: None,
        storage: StorageSettings = StorageSettings(),  # noqa: B008 - immutable
    ) -> None:
        self.home = home
        self.said: dict[str, list[str]] = {}
        self.broker = Broker(home / folder, listen="127.0.0.1:0", say=say, storage=storage)
        # broker, workers and their training share one interpreter here: on a busy machine its threads wait for long
        self.broker.sessions.leases.length = Seconds(120.0)
        self.workers: dict[str, Worker] = {}
        #: All workers, those that tests have lost included.
        self._added: list[Worker] = []
        #: The thread that serves each worker, in the order of ``add``.
        self.threads: list[threading.Thread] = []
        self.key = kept_key(home / "member-key.pem")
        self.client = Client(join(self.ticket("submit"), name="client", role="client", key=self.key))
        for name in "abcdefgh"[:workers]:
            self.add(name, (memory or {}).get(name, 4e9))

    def members(self) -> list[str]:
        """Names of the present members, as the broker lists them."""
        members = self.client.status()["members"]
        assert isinstance(members, list)
        return [str(member["name"]) for member in members]

    def ticket(self, scope: str) -> Ticket:
        return self.broker.ticket(scope)

    def add(
        self,
        name: str,
        memory: float = 4e9,
        data: Path | None = None,
        *,
        any_path: bool = False,
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
        reliable: bool = True,
        region: str = "",
        only: Literal["", "training", "serving"] = "",
        engine: str = "torch",
        devices: tuple[str, ...] = (),
        disk: float = 0.0,
        isolation: str = "off",
        on_owner: Callable[[Mapping[str, Any]], None] = lambda header: None,
        observer: WorkObserver | None = None,
    ) -> Worker:
        """One more worker; ``data``: its own data folder; an empty ``listen``: it can't be dialled; ``devices``: of a site."""
        said = self.said[name] = []
        place = data or self.home
        options = WorkerOptions(
            engine=engine,
            devices=devices,
            isolation="auto" if devices else isolation,
            disk=disk,
            disk_folder=self.home / "disk",
            listen=listen,
            advertise=advertise,
            memory=memory,
            data=place,
            any_path=any_path,
            reliable=reliable,
            region=region,
            only=only,
        )
        member = join(self.ticket("join"), name=name, role="worker", key=self.key)
        worker = Worker(member, options, said.append, on_owner=on_owner, observer=observer)
        thread = threading.Thread(target=_serve, args=(worker,), name=f"worker-{name}", daemon=True)
        thread.start()
        self.threads.append(thread)
        self.workers[name] = worker
        self._added.append(worker)
        # workers join one after the other, so that plans name them in this order
        until(lambda: not thread.is_alive() or name in self.members())
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        for worker in self.workers.values():
            worker.stop()
        for thread in self.threads:
            thread.join(timeout=PATIENCE)
        for worker in (*self._added, *self.workers.values()):
            worker.close()
            worker.carried.device.engine.end()
        self.broker.close()

    def submit(self, job: JobSpec, *, base: Path | None = None) -> tuple[Bundle, Path]:
        """Hand in ``job``; its bundle and its folder."""
        bundle = captured(job, base or self.home)
        send_weights(self.client, bundle)
        return bundle, Path(self.client.submit(bundle)["folder"])

    def run(
        self,
        job: JobSpec,
        *,
        on_record: Callable[[str, StepRecord], None] | None = None,
        anybody: bool = False,
        injector: Injector | None = None,
    ) -> Finished:
        """Hand in ``job`` and follow it to its end.

        If it names no number of workers, it gets that of those that there are; ``anybody``: it takes as many as there are then.
        ``on_record`` is called at each record of a step, before the run is two steps further.
        """
        if job.workers is None and not anybody:
            job = job.model_copy(update={"workers": len(self.workers)})
        if on_record is None:
            with nullcontext() if injector is None else injecting(injector):
                return self._follow(job, None)
        leash = Leash(injector)

        def seen(run: str, record: StepRecord) -> None:
            on_record(run, record)
            leash.seen(record.step)

        with injecting(leash):
            try:
                return self._follow(job, seen)
            finally:
                leash.drop()

    def _follow(self, job: JobSpec, on_record: Callable[[str, StepRecord], None] | None) -> Finished:
        bundle, folder = self.submit(job)
        frames: list[Frame] = []
        steps: list[StepRecord] = []
        evaluations: list[EvaluationRecord] = []
        for frame in watched(self.client, bundle.run):
            frames.append(frame)
            if frame.kind == "record":
                record = read_record(str(frame.header["line"]))
                if isinstance(record, StepRecord):
                    steps.append(record)
                    if on_record is not None:
                        on_record(bundle.run, record)
                elif isinstance(record, EvaluationRecord):
                    evaluations.append(record)
        result = RunResult.from_json(str(frames[-1].header["result"]))
        planned = next((frame for frame in frames if frame.kind == "planned"), None)
        devices = tuple(planned.header["addresses"]) if planned is not None else ()
        return Finished(
            run=bundle.run, folder=folder, result=result, steps=steps, evaluations=evaluations, devices=devices, frames=frames
        )


def cut_off(worker: Worker) -> None:
    """As if the worker's machine had lost its power: the broker and the peers get no goodbye."""
    worker.session.break_off()
    worker.endpoint.close()


def _serve(worker: Worker) -> None:
    with suppress(ConnectionLost):
        worker.serve()


def same(left: Mapping[str, Array], right: Mapping[str, Array]) -> list[str]:
    """The names under which two sets of tensors differ in a bit, or that only one has."""
    names = [name for name in left if name not in right or left[name].tobytes() != np.ascontiguousarray(right[name]).tobytes()]
    return names + [name for name in right if name not in left]


def plainly(job: JobSpec, home: Path, weights: Mapping[str, Array] | None = None) -> tuple[Any, PlainResult]:
    """The job as a plain PyTorch loop over the same files: the trained module, and what it gave.

    ``weights``: values by state name (else what the module's factory makes under the job's seed).
    """
    import torch

    from farflung.engines import get_engine
    from farflung.frontends.recipes import load_recipe

    assert job.model is not None
    bundle = captured(job, home)
    module = load_recipe(job.model.recipe, job.model.args, base=home).train.factory().train()
    held = dict(weights or {})
    missing = [state.name for state in bundle.graph.states if state.name not in held and state.init]
    held |= get_engine("torch").initial_states(bundle.graph, job.seed, missing)
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in held.items():
            if name in tensors:
                tensors[name].copy_(torch.from_numpy(np.array(value)))
    order = dict(bundle.graph.meta)["inputs"].split(",")
    specs = {name: bundle.graph.op(name).outputs[0] for name in order}
    loader = Loader(job.data, open_source(job.data, home), specs, job.micro_batch_sizes, job.seed)

    def batch(step: int, index: int) -> dict[str, torch.Tensor]:
        arrays = loader.batch(step, index)
        return {name: torch.from_numpy(np.array(arrays[name])) for name in order}

    settings = PlainSettings(
        optimizer=job.optimizer,
        seed=job.seed,
        weights=[job.weight(index) for index in range(job.micro_batches)],
        rates=lambda step: rates(job, step),
        precision=job.precision,
        loss_scale=job.loss_scale,
    )
    return module, plain_loop(module, batch, steps=job.steps, micro_batches=job.micro_batches, settings=settings)


def states_of(finished: Finished) -> dict[str, Array]:
    """Parameters and buffers of the newest checkpoint."""
    reader = finished.reader()
    return reader.read(reader.manifest.states)
