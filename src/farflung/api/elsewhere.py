"""Training on the workers of a ticket; this process keeps the data and feeds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from farflung.api.batches import Batches
from farflung.api.outcome import Outcome
from farflung.checkpoint.safetensors import encode, spec_of
from farflung.engines.base import Array
from farflung.graph.ir import StateKind
from farflung.job.spec import CheckpointSpec, DataSpec
from farflung.runtime.bundle import Bundle
from farflung.runtime.client import Client, PlannedRun
from farflung.runtime.feeding import Feeder
from farflung.runtime.membership import join
from farflung.security import Ticket
from farflung.telemetry.records import RecoveryRecord, RunResult, StepRecord, read_record
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = ["run_elsewhere"]


def run_elsewhere(
    bundle: Bundle, states: Mapping[str, Array], batches: Batches, ticket: str, tell: Callable[[StepRecord], None]
) -> Outcome:
    """Train ``bundle`` on all idle workers of the ticket's broker.

    Raises:
        SecurityError: the ticket is not good.
        TrainingError: the run failed; the text is its cause.
    """
    job = bundle.job.model_copy(update={"data": DataSpec(kind="caller"), "checkpoint": CheckpointSpec(at_end=True)})
    bundle = replace(bundle, job=job)
    client = Client(join(Ticket.parse(ticket), name=f"caller-{bundle.run}", role="client"))
    try:
        if states:
            client.send_weights(bundle.run, encode({n: spec_of(a) for n, a in states.items()}, states.__getitem__))
        client.submit(bundle)
        client.patience = _PATIENCE
        follower = _Follower(bundle, client, batches, tell)
        follower.follow()
        assert follower.planned is not None  # a run can't finish without a plan
        names = [s.name for s in bundle.graph.states if s.kind is not StateKind.CONSTANT and s.persistent]
        held = client.states(bundle.run, names)
        return Outcome(plan=follower.planned.plan, records=tuple(follower.records), states=held)
    finally:
        client.close()


#: A broker that was killed may be started again.
_PATIENCE = Seconds(120.0)


class _Follower:
    """Watches the run and feeds it."""

    def __init__(self, bundle: Bundle, client: Client, batches: Batches, tell: Callable[[StepRecord], None]) -> None:
        self._bundle, self._client, self._batches, self._tell = bundle, client, batches, tell
        self.planned: PlannedRun | None = None
        self.records: list[StepRecord] = []
        self._feeder: Feeder | None = None
        #: The plan that was fed last, and how many steps were told.
        self._fed = 0
        self._told = 0

    def follow(self) -> None:
        """Until the run is over.

        Raises:
            TrainingError: it failed.
            BaseException: what the caller's own batch function raised.
        """
        try:
            for frame in self._client.watch(self._bundle.run):
                if frame.kind == "planned":
                    self.planned = PlannedRun.from_frame(frame)
                elif frame.kind == "started" and self.planned is not None:
                    self._feed(self.planned)
                elif frame.kind in ("record", "result"):
                    self._take(frame)
        except KeyboardInterrupt:
            self._client.stop(self._bundle.run)
            raise
        finally:
            self._end_feeding()

    def _feed(self, planned: PlannedRun) -> None:
        """Feed the plan from its first step on; after a loss there is a new plan, which may begin at an earlier step."""
        if planned.attempt == self._fed:
            return
        self._end_feeding()
        self._fed = planned.attempt
        self._feeder = Feeder(self._bundle, planned, self._client, self._batches)
        self._feeder.start()

    def _end_feeding(self) -> None:
        if self._feeder is not None:
            self._feeder.end()

    def _take(self, frame: Frame) -> None:
        if frame.kind == "record":
            record = read_record(str(frame.header["line"]))
            if isinstance(record, RecoveryRecord):
                self.records = [one for one in self.records if one.step < record.step]
            elif isinstance(record, StepRecord):
                self.records.append(record)
                if record.step >= self._told:
                    self._told = record.step + 1
                    self._tell(record)
            return
        if self._feeder is not None and self._feeder.error is not None:
            raise self._feeder.error
        result = RunResult.from_json(str(frame.header["result"]))
        if result.status != "finished":
            kind = self._client.failure(self._bundle.run)
            raise kind(f"{self._bundle.run} {result.status} after {result.steps} steps: {result.cause or 'by request'}")
