"""What a worker sends to the broker, in its session."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from farflung.messages.commands import DecisionItem
from farflung.messages.schema import (
    FINITE,
    PLAIN,
    UNSET,
    Address,
    Amount,
    Channel,
    Count,
    Flag,
    Index,
    Item,
    Label,
    Member,
    Message,
    Name,
    Names,
    Parting,
    Run,
    Sha256,
    StateHashes,
    Text,
    UnsetType,
    Version,
)
from farflung.messages.watching import BatchItem
from farflung.nat_types import NatType

__all__ = [
    "MOST_RETAINED_STEPS",
    "MOST_STEPS",
    "CopyHashed",
    "Dropped",
    "Ended",
    "Evaluated",
    "Failed",
    "Generated",
    "Hashed",
    "Hello",
    "Helping",
    "LinkItem",
    "Measured",
    "NatDescribed",
    "Noted",
    "OfferItem",
    "Prepared",
    "Probed",
    "PunchEnded",
    "PunchWanted",
    "Reached",
    "Relayed",
    "RetainedRun",
    "RetainedStateItem",
    "Stepped",
    "Traced",
    "Waits",
    "Wants",
]

_LEAST_FACTOR, _MOST_FACTOR = 1e-9, 1e9
_MOST_STAGES = 100_000
_MOST_MICRO_BATCHES = 1_000_000
#: Retained states of one worker.
_MOST_STATES = 256
#: Step reports that a worker sends again after the loss of another worker, and after the loss of the broker.
MOST_STEPS, MOST_RETAINED_STEPS = 64, 1024
#: Verified units in one step report.
_MOST_AUDITS = 1000
#: Pairs of a stage and a helper in one step.
_MOST_HELPED = 10_000

#: No machine has more bytes, bytes per second or FLOP/s, so what planners compute of them stays finite.
_MOST_CAPACITY = 1e24
#: Bytes or FLOP/s that others divide by.
Capacity = Annotated[float, Meta(ge=1.0, le=_MOST_CAPACITY)]
#: Bytes, or bytes per second, of which there may be none.
Room = Annotated[float, Meta(ge=0.0, le=_MOST_CAPACITY)]
#: Seconds that one measurement gives.
Duration = Annotated[float, Meta(ge=0.0, le=86400.0)]
Finite = Annotated[float, Meta(ge=-FINITE, le=FINITE)]
#: The name of a host, a processor or a version.
Word = Annotated[str, Meta(max_length=100, pattern=PLAIN)]
Factor = Annotated[float, Meta(ge=_LEAST_FACTOR, le=_MOST_FACTOR)]
Devices = Annotated[tuple[Member, ...], Meta(max_length=10_000)]
#: [giving stage, taking stage, micro-batch, kind, digest] (``plan.verification.Transfer``)
DigestItems = Annotated[
    tuple[tuple[Index, Index, Index, Literal[0, 1, 2], Annotated[bytes, Meta(max_length=16)]], ...], Meta(max_length=_MOST_STAGES)
]
#: [sending stage, receiving stage, bytes]
PairBytes = Annotated[tuple[tuple[Index, Index, Count], ...], Meta(max_length=_MOST_STAGES)]


class OfferItem(Item):
    """What a worker offers: its device, its speed and its versions.

    ``memory``: bytes. ``speed``: FLOP/s. ``overhead``: seconds. ``convolution``: a ratio. ``isolation``: of a job's
    process. ``region``: where the machine is, in its owner's words. ``disk``: free bytes. ``operators``, ``precisions``: what
    the worker's engine supports. ``probe``: what it computes of a small graph (``engines.probe``). ``installed``: bytes of the
    memory that all workers of the machine share. ``ranks``: of a site, over which ``memory`` and ``speed`` are sums.
    ``rank_latency``, ``rank_rate``: seconds, and bytes per second, of an exchange between them.
    ``offload``: bytes of disk for states that do not fit into memory, and ``offload_rate`` its bytes per second.
    ``only``: the kind of run that the worker's owner allows, if not both.
    """

    memory: Capacity
    kind: Label
    description: Annotated[str, Meta(max_length=300, pattern=PLAIN)]
    host: Word
    processors: Annotated[tuple[Word, ...], Meta(max_length=4096)]
    versions: Annotated[dict[Word, Word], Meta(max_length=16)]
    speed: Capacity
    factor: Factor
    overhead: Duration
    convolution: Factor | UnsetType = UNSET
    relay: bool
    reliable: bool
    operators: Annotated[tuple[Label, ...], Meta(max_length=4096)] | UnsetType = UNSET
    precisions: Annotated[tuple[Label, ...], Meta(max_length=16)] | UnsetType = UNSET
    probe: Annotated[tuple[float, ...], Meta(max_length=64)] | UnsetType = UNSET
    isolation: Literal["full", "partial", "off"] | UnsetType = UNSET
    region: Word | UnsetType = UNSET
    disk: Room | UnsetType = UNSET
    installed: Room | UnsetType = UNSET
    ranks: Annotated[int, Meta(ge=2, le=64)] | UnsetType = UNSET
    rank_latency: Duration | UnsetType = UNSET
    rank_rate: Capacity | UnsetType = UNSET
    offload: Capacity | UnsetType = UNSET
    offload_rate: Capacity | UnsetType = UNSET
    only: Literal["training", "serving"] | UnsetType = UNSET


class RetainedStateItem(Item):
    """Retained states of one step; see ``protocol.retained_states.RetainedState``."""

    step: Count
    committed: Count
    states: Names
    ready: bool
    decision: DecisionItem | None
    copied: bool


class LinkItem(Item, array_like=True):
    """What training traffic measures of the link to ``peer``.

    ``alpha``: seconds. ``beta``: bytes per second. ``least``: a lower bound.
    """

    peer: Member
    alpha: Duration
    beta: Room
    least: Room
    relay: Member


class AuditItem(Item):
    """What a verifier found for one unit; see ``plan.verification.Audit``."""

    step: Count
    stage: Index
    micro_batch: Index
    took: DigestItems
    gave: DigestItems


class OwnerLimitsMessage(Message):
    """Base of messages with the limits of a worker's owner. ``memory``: bytes. ``bandwidth``: bytes per second (None: no cap)."""

    paused: Flag = UNSET
    parting: Parting | UnsetType = UNSET
    memory: Capacity | UnsetType = UNSET
    bandwidth: Capacity | UnsetType | None = UNSET


class RunReport(Message):
    """Base of reports about one attempt of a run. A report of an older attempt is dropped."""

    run: Run
    attempt: Count


class Stepped(RunReport, kind="step", on=Channel.REPORTS):
    """A worker's part in one step; see ``messages.conversions.step_reports.StepReport``."""

    step: Count
    seconds: float
    busy: float
    wait: float
    sent: PairBytes
    dense: PairBytes
    stage_busy: Annotated[tuple[tuple[Index, float], ...], Meta(max_length=_MOST_STAGES)]
    loss: float | None
    losses: Annotated[tuple[float, ...], Meta(max_length=_MOST_MICRO_BATCHES)]
    samples: Count
    skipped: bool
    left_out: Count | UnsetType = UNSET
    rate: float
    grad_norm: float | None
    divergence: float | None
    codecs: Annotated[tuple[tuple[Index, Index, float, float, float | None], ...], Meta(max_length=_MOST_STAGES)]
    excluded: Devices | UnsetType = UNSET
    spoilers: Devices | UnsetType = UNSET
    gave: DigestItems | UnsetType = UNSET
    took: DigestItems | UnsetType = UNSET
    audits: Annotated[tuple[AuditItem, ...], Meta(max_length=_MOST_AUDITS)] | UnsetType = UNSET
    helped: Annotated[tuple[tuple[Index, Member, Count, Amount], ...], Meta(max_length=_MOST_HELPED)] | UnsetType = UNSET


class RetainedRun(Item):
    """What a worker that comes back retains of a run."""

    run: Run
    attempt: Version
    states: Annotated[tuple[RetainedStateItem, ...], Meta(max_length=_MOST_STATES)]
    steps: Annotated[tuple[Stepped, ...], Meta(max_length=MOST_RETAINED_STEPS)]


class Hello(OwnerLimitsMessage, kind="hello", on=Channel.REPORTS, first=("address", "offer")):
    """The first message of a session. ``holds``: what the worker retains of a run whose broker went away.

    ``address6``: a second address: with IPv6, or in the local network if ``address`` is the router's.
    """

    address: Address
    address6: Address | UnsetType = UNSET
    offer: OfferItem
    holds: RetainedRun | UnsetType = UNSET


class Wants(OwnerLimitsMessage, kind="wants", on=Channel.REPORTS):
    """The owner's limits have changed."""


class Measured(Message, kind="measured", on=Channel.REPORTS):
    """Answers ``Measure``. ``share``: of its usual speed, what the device reaches while other workers of the machine compute."""

    speed: Capacity
    factor: Factor
    overhead: Duration
    convolution: Factor | UnsetType = UNSET
    share: Factor | UnsetType = UNSET


class Probed(Message, kind="probed", on=Channel.REPORTS):
    """Answers the ``question`` of ``Probe``: the figures of the link, or the ``cause`` why there are none."""

    question: Count
    alpha: Duration | UnsetType = UNSET
    beta: Capacity | UnsetType = UNSET
    spread: Amount | UnsetType = UNSET
    relay: Member | UnsetType = UNSET
    cause: Text | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse an answer with neither figures nor a cause.

        Raises:
            ValueError: this is one; ``decode`` makes a ``WireError`` of it.
        """
        if self.cause is UNSET and UNSET in (self.alpha, self.beta):
            raise ValueError("a probe's answer has alpha and beta, or a cause")


class Reached(Message, kind="reached", on=Channel.REPORTS):
    """Answers ``Reach``: member -> whether it could be dialled."""

    question: Count
    found: dict[Member, bool]


class NatDescribed(Message, kind="nat", on=Channel.REPORTS):
    """The type of NAT between this worker and the broker. A worker that listens finds it out when it has joined."""

    nat: NatType


class PunchWanted(Message, kind="punch_wanted", on=Channel.REPORTS):
    """This worker needs a connection with ``peer``, which only hole punching reaches."""

    peer: Member


class PunchEnded(Message, kind="punch_ended", on=Channel.REPORTS):
    """Whether the attempt that this worker wanted has ``reached`` the peer."""

    peer: Member
    reached: bool


class Relayed(Message, kind="relayed", on=Channel.REPORTS):
    """The bytes that a relay carried for a run that is over: [source, target, bytes]."""

    run: Run
    carried: Annotated[tuple[tuple[Member, Member, Count], ...], Meta(max_length=20_000)]


class Helping(RunReport, kind="helping", on=Channel.REPORTS):
    """Answers ``Help``: this worker is ready."""


class Prepared(RunReport, kind="prepared", on=Channel.REPORTS):
    """Answers ``Prepare``: this worker is ready. ``fingerprints``: of the data that it reads."""

    fingerprints: dict[Name, Text]


class Ended(RunReport, kind="ended", on=Channel.REPORTS):
    """This worker's part is over. ``whole``: all steps of the job are done."""

    whole: bool


class Failed(RunReport, kind="failed", on=Channel.REPORTS):
    """This worker's part has failed. ``kind``: the error's class. ``lost_peer``: the connection to a peer was lost.

    ``batch``: on which it failed, if it failed while a batch was computed. ``blames``: the peer from which the message or the
    numbers came on which it failed.
    """

    cause: Text
    kind: Label
    lost_peer: Flag = UNSET
    batch: BatchItem | UnsetType = UNSET
    blames: Member | UnsetType = UNSET


class Dropped(RunReport, kind="dropped", on=Channel.REPORTS):
    """Answers ``Abort``: what the worker retains of the attempt, and its last step reports."""

    states: Annotated[tuple[RetainedStateItem, ...], Meta(max_length=_MOST_STATES)]
    steps: Annotated[tuple[Stepped, ...], Meta(max_length=MOST_STEPS)]


class Hashed(RunReport, kind="hashed", on=Channel.REPORTS):
    """The hash of a share of the checkpoint after ``step`` steps, which goes another way than its bytes.

    ``of``: the worker whose share it is, since this one is its replica (unset: its own).
    """

    step: Count
    sha256: Sha256
    of: Member | UnsetType = UNSET


class CopyHashed(RunReport, kind="copy-hashed", on=Channel.REPORTS):
    """The hashes of the states after ``step`` steps that this worker computed, and of which others store a copy."""

    step: Count
    hashes: StateHashes


class Waits(RunReport, kind="waits", on=Channel.REPORTS):
    """This worker has waited for ``seconds`` for messages of ``peers`` (none: it waits no more). Repeated while it waits.

    ``fetched``: bytes of the job's data that it has fetched from a store. Repeated while they grow.
    """

    peers: Annotated[tuple[Member, ...], Meta(max_length=4096)]
    seconds: Amount
    fetched: Count | UnsetType = UNSET


class Evaluated(RunReport, kind="evaluation", on=Channel.REPORTS):
    """The mean outputs of the evaluation after ``step`` steps."""

    step: Count
    outputs: dict[Name, float]


class Generated(RunReport, kind="text", on=Channel.REPORTS):
    """The text that the trained model generated."""

    text: Annotated[str, Meta(max_length=1 << 20)]


class Traced(RunReport, kind="trace", on=Channel.REPORTS):
    """Spans of the trace (``telemetry.trace.pack_spans``).

    ``clock``: the offset of the broker's clock and its error, in seconds.
    """

    names: Annotated[tuple[Text, ...], Meta(max_length=65536)]
    spans: bytes
    lost: Count
    clock: tuple[Finite, Annotated[float, Meta(ge=0.0)]] | None
    links: Annotated[tuple[LinkItem, ...], Meta(max_length=4096)]


class Noted(RunReport, kind="note", on=Channel.REPORTS):
    """A line for the people who watch the run. ``detail``: for experts only."""

    text: Annotated[str, Meta(max_length=1000)]
    detail: Flag = UNSET
