"""What the broker sends to a worker, in the worker's session."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.messages.schema import (
    ANY_SECTIONS,
    UNSET,
    Address,
    Amount,
    Channel,
    Count,
    Document,
    Flag,
    Index,
    Item,
    Label,
    LongText,
    Member,
    Message,
    Name,
    Names,
    Parting,
    Positive,
    Run,
    SectionedMessage,
    StateHashes,
    UnsetType,
    Version,
)

__all__ = [
    "Abort",
    "Beat",
    "CopyRounds",
    "DecisionItem",
    "Dismissed",
    "Fenced",
    "Forget",
    "Goodbye",
    "HandOver",
    "Help",
    "Helper",
    "HelperGone",
    "Lend",
    "LiveStart",
    "Measure",
    "Meet",
    "Observe",
    "OwnerRequest",
    "Pairs",
    "PhaseLimits",
    "Prepare",
    "Probe",
    "Punch",
    "Reach",
    "Recheck",
    "Relay",
    "Routes",
    "Start",
    "Stop",
    "Welcome",
]

_MOST_PAIRS = 10_000
_MOST_RELAYS = 8

#: Member -> address. An empty address: the member dials, or is reached through a relay. ``PUNCHED``: hole punching reaches it.
Addresses = dict[Member, Address]
#: Member -> the relays (name, address) that reach it, the best first.
Routes = dict[Member, Annotated[tuple[tuple[Member, Address], ...], Meta(max_length=_MOST_RELAYS)]]
#: 16 random bytes.
Token = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Pairs = Annotated[tuple[tuple[Member, Member], ...], Meta(max_length=_MOST_PAIRS)]


class DecisionItem(Item):
    """How a step ended. ``scale``: the factor that clipped its gradients (None: none did)."""

    applied: bool
    scale: float | None


class CopyRounds(Item):
    """How often workers copy their states to guards, and who the guards of each worker are.

    ``every``: steps between rounds (0: no rounds). ``least``: the fewest steps between rounds. ``budget``: bytes per step that
    copies may take on links (0: ``every`` is fixed).
    """

    every: Count = 0
    guards: dict[Member, tuple[Member, ...]] = msgspec.field(default_factory=dict)
    least: Count = 1
    budget: Amount = 0.0

    def gap(self, nbytes: int) -> int:
        """Return the steps from a round that took ``nbytes`` on links to the next round."""
        return max(self.least, math.ceil(nbytes / self.budget)) if self.budget > 0.0 else self.every


class LiveStart(Item):
    """The state from which an attempt resumes, where workers still retain it.

    ``moves``: holder -> the states that this worker fetches from it. ``hashes``: of those of them that are copies, as the worker
    that computed them has reported.
    """

    step: Count
    committed: Count
    decision: DecisionItem | None
    moves: dict[Member, Names]
    hashes: StateHashes | UnsetType = UNSET


class Welcome(Message, kind="welcome", on=Channel.COMMANDS):
    """The session has begun. ``lease``: seconds of silence after which each side gives up the other."""

    name: Member
    generation: Version
    lease: Annotated[float, Meta(ge=0.1, le=1e9)]
    warnings: Annotated[tuple[LongText, ...], Meta(max_length=100)]


class Goodbye(Message, kind="goodbye", on=Channel.COMMANDS):
    """The broker closes, and the worker need not come back until it is started again."""

    cause: LongText


class Fenced(Message, kind="fenced", on=Channel.COMMANDS):
    """The broker has given up this session. A worker that still runs joins again."""

    cause: LongText


class Beat(Message, kind="beat", on=(Channel.COMMANDS, Channel.REPORTS)):
    """The sender is alive. Sent when there is nothing else to send. ``disk``: free bytes of a worker's disks."""

    disk: Amount | UnsetType = UNSET


class Dismissed(Message, kind="dismissed", on=Channel.COMMANDS):
    """A worker that wanted to leave may leave now."""


class OwnerRequest(Message, kind="owner", on=Channel.COMMANDS):
    """The worker's owner wants something, as a client reported to the broker."""

    paused: Flag = UNSET
    parting: Parting | UnsetType = UNSET


class Measure(Message, kind="measure", on=Channel.COMMANDS):
    """Measure the device with ``threads`` threads. ``together``: other workers of the machine measure at the same time."""

    threads: Annotated[int, Meta(ge=1, le=65536)]
    together: Flag = UNSET


class Probe(Message, kind="probe", on=Channel.COMMANDS):
    """Measure the link to ``peer``. The worker answers with ``Probed``."""

    question: Count
    peer: Member
    address: Address
    relays: Routes | UnsetType = UNSET


class Reach(Message, kind="reach", on=Channel.COMMANDS):
    """Try to dial ``peers`` (name -> address), each for ``seconds``. The worker answers with ``Reached``."""

    question: Count
    peers: Addresses
    seconds: Annotated[float, Meta(ge=0.1, le=1e6)]


class Observe(Message, kind="observe", on=Channel.COMMANDS):
    """Show the broker a port, with ``token``, and then wait for ``Punch`` of this ``number``.

    ``dials``: this worker opens TLS on the connection with ``peer``.
    """

    number: Count
    peer: Member
    token: Token
    dials: bool


class Punch(Message, kind="punch", on=Channel.COMMANDS):
    """Dial ``address`` from the observed port now, as the peer does."""

    number: Count
    address: Address


class Relay(Message, kind="relay", on=Channel.COMMANDS):
    """Relay for ``pairs`` of members in ``run``. No pairs: the run is over, and the worker answers with ``Relayed``."""

    run: Run
    pairs: Pairs


class Meet(Message, kind="meet", on=Channel.COMMANDS):
    """Peers that this worker will meet: their addresses, and the relays that reach them."""

    addresses: Addresses
    relays: Routes


class JobMessage(SectionedMessage):
    """Base of messages with a job: ``documents`` names the sections, which are compressed (``messages.submission``)."""

    bundle: Version
    run: Run
    documents: Annotated[tuple[Label, ...], Meta(max_length=4096)]
    emulate: bool
    notes: dict[Name, Document]


class PhaseLimits(Item):
    """How many seconds one micro-batch may take on a worker: its ``data`` to come, and a forward or backward to ``compute``."""

    data: Amount
    compute: Amount


class AttemptMessage(JobMessage):
    """Base of messages with a job and an attempt to run it. The last document is the plan.

    The attempt begins at ``first_step``, of which ``committed`` steps count, with states from ``states`` (``checkpoint``,
    ``weights``, ``file`` or ``init``). A rollback returns to ``checkpoint_step`` and ``checkpoint_committed``.
    """

    first_step: Count
    committed: Count
    attempt: Version
    states: Label
    checkpoint_step: Count
    checkpoint_committed: Count
    recovered: bool
    submitter: Member
    rounds: CopyRounds


class Prepare(AttemptMessage, kind="prepare", on=Channel.COMMANDS, sections=ANY_SECTIONS):
    """Prepare a part in a run as ``device`` of the plan. The worker answers with ``Prepared``, or with ``Failed``.

    ``secrets``: worker -> the key of the draws of its units that this worker may verify (``plan.verification``).
    """

    device: Member
    addresses: Addresses
    relays: Routes
    limits: PhaseLimits
    live: LiveStart | UnsetType = UNSET
    secrets: dict[Member, Label] | UnsetType = UNSET


class Help(AttemptMessage, kind="help", on=Channel.COMMANDS, sections=ANY_SECTIONS):
    """Help ``server`` with ``stage``. ``addresses``: all servers of the stage. The worker answers with ``Helping``."""

    relays: Routes
    device: Member
    server: Member
    stage: Index
    addresses: Addresses


class Start(Message, kind="start", on=Channel.COMMANDS):
    """All workers are prepared: train."""

    run: Run
    attempt: Version


class Recheck(Message, kind="recheck", on=Channel.COMMANDS):
    """Verify a unit that ``verifier`` has verified with another result than its worker reported. The next step report has it."""

    run: Run
    attempt: Version
    step: Count
    stage: Index
    micro_batch: Index
    verifier: Member


class Stop(Message, kind="stop", on=Channel.COMMANDS):
    """End the run after the current step."""

    run: Run


class HandOver(Message, kind="hand_over", on=Channel.COMMANDS):
    """End this worker's part after the current step, with a checkpoint. The others continue under another plan."""

    run: Run


class Abort(Message, kind="abort", on=Channel.COMMANDS):
    """End the attempt now. ``keep``: retain the states, and answer with ``Dropped``."""

    run: Run
    cause: LongText
    keep: bool
    attempt: Count


class Lend(Message, kind="lend", on=Channel.COMMANDS):
    """Give retained states to the workers in ``addresses``. This worker has no part in their plan."""

    run: Run
    attempt: Version
    addresses: Addresses
    relays: Routes
    live: LiveStart


class Forget(Message, kind="forget", on=Channel.COMMANDS):
    """Nobody needs the retained states of ``run`` any more."""

    run: Run


class Helper(Message, kind="helper", on=Channel.COMMANDS):
    """``name`` helps with ``stage`` from now on. ``fed``: this server sends it the states. ``speed``: relative to this server."""

    run: Run
    attempt: Version
    name: Member
    stage: Index
    speed: Positive
    address: Address
    fed: bool


class HelperGone(Message, kind="helper_gone", on=Channel.COMMANDS):
    """``name`` does not help any more."""

    run: Run
    attempt: Version
    name: Member
    cause: LongText
