"""Events that a broker receives, and commands that it emits: plain data, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.errors import FailedBatch
from farflung.protocol.helper_events import AskHelper, HelperGone, HelperMoves
from farflung.units import counted

__all__ = [
    "DATA_ERROR",
    "ENGINE_CRASHED",
    "INPUT_ERROR",
    "PLAN_ERROR",
    "TRAINING_ERROR",
    "AbortRun",
    "AskHelper",
    "BetterPlan",
    "Command",
    "DismissMember",
    "Event",
    "FinishRun",
    "HelperGone",
    "HelperMoves",
    "HostMeasured",
    "MakePlan",
    "MemberJoined",
    "MemberJudged",
    "MemberLate",
    "MemberLied",
    "MemberLost",
    "MemberMeasured",
    "MemberReset",
    "MemberSlowed",
    "MemberSpoilt",
    "MemberWants",
    "MigrateRun",
    "Offer",
    "PlanMade",
    "PrepareRun",
    "RecoverRun",
    "RunAdvanced",
    "RunCommand",
    "RunDropped",
    "RunEnded",
    "RunFailed",
    "RunPrepared",
    "RunRestored",
    "RunStalled",
    "RunSubmitted",
    "RunWaits",
    "StartRun",
    "StopRequested",
    "StopRun",
    "WaitedEnough",
]

#: Classes of errors: one without a more precise class, and no plan for the present workers.
TRAINING_ERROR, PLAN_ERROR = "TrainingError", "PlanError"
#: An input (the job's topology) does not match the workers; the process in which a worker computes for the run has died.
INPUT_ERROR, DATA_ERROR, ENGINE_CRASHED = "InputError", "DataError", "EngineCrashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker offers: memory in bytes, achieved speed in FLOP/s, device kind and its versions.

    ``factor``: lambda, the achieved share of the peak. ``overhead``: seconds that each operator costs in addition to its FLOPs.
    ``convolution``: how many times as fast as other operators convolutions run. ``host``: the same for all workers of one machine
    (empty: unknown). ``processors``: names of the processors on which it computes; workers of a host may share some. ``relay``:
    it may relay between members of its runs. ``reliable``: it stays; otherwise it may leave at any time without notice.
    ``isolation``: ``full``, ``partial`` or ``off``: what a job's process gives up (empty: unknown). ``region``: where the machine
    is, in its owner's words (empty: unknown). ``operators``, ``precisions``: what its engine supports (None and empty: not known,
    so everything). ``installed``: bytes of memory that all workers of the machine share (0: unknown). ``ranks``: devices of a
    site, which compute different micro-batches at the same time (1: no site). ``rank_latency``, ``rank_rate``: an exchange of M
    bytes between them takes ``rank_latency + M / rank_rate`` (0: unknown). ``offload``: bytes of disk for states that do not fit
    into memory, and ``offload_rate`` its bytes per second (0: none). ``only``: ``training`` or ``serving``, if its owner allows
    nothing else (empty: both).
    """

    memory: float
    speed: float
    factor: float = 1.0
    overhead: float = 0.0
    convolution: float = 1.0
    host: str = ""
    processors: tuple[str, ...] = ()
    kind: str = "cpu"
    description: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    relay: bool = True
    reliable: bool = True
    isolation: str = ""
    region: str = ""
    operators: frozenset[str] | None = None
    precisions: tuple[str, ...] = ()
    installed: float = 0.0
    ranks: int = 1
    rank_latency: float = 0.0
    rank_rate: float = 0.0
    offload: float = 0.0
    offload_rate: float = 0.0
    only: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWants:
    """A worker's owner has other wishes: it shall be left out for a while, or leave (``parting``: ``drain``, ``leave``).

    ``memory``: bytes that training may use from now on (None: unchanged).
    """

    name: str
    paused: bool = False
    parting: str = ""
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A worker opened its session. ``address``: where its peers dial it. ``wants``: wishes of its owner (None: it has none)."""

    name: str
    address: str
    offer: Offer
    generation: int = 0
    wants: MemberWants | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMeasured:
    """An idle worker has measured its device again: achieved speed in FLOP/s, lambda, seconds per operator.

    ``share``: the share of that speed that it reached together with the other workers of its host (None: it measured alone).
    """

    name: str
    speed: float
    factor: float
    overhead: float
    convolution: float = 1.0
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """The workers ``names`` share processors and measured at the same time: ``capacity`` of them reach full speed at once."""

    names: tuple[str, ...]
    capacity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSlowed:
    """A training worker computes lastingly slower (``times`` above 1: a step takes this many times as long), or faster again."""

    name: str
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """A worker's session broke or ended."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddedRun:
    """``recoveries``: the run survives this many consecutive losses without a new step (0: the first loss ends it).

    ``helped``: its plans are for reliable workers, and unreliable ones help these; ``unreliable``: workers that its topology
    marks as such. ``exclude``, ``engines``: the limits of its job, which hold for helpers, too. ``serves``: it serves a model.
    """

    run: str
    workers: int | None
    recoveries: int = 0
    helped: bool = False
    unreliable: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    serves: bool = False
    submitter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmitted(_AddedRun):
    """A job was submitted. It starts when ``workers`` workers are idle (None: when any worker is)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestored(_AddedRun):
    """A run of an earlier broker process.

    ``attempts``: the number of its attempts, or more. ``outcome``: how it ended (empty: it did not), with ``cause`` and ``kind``.
    ``expected``: the number of its workers; until ``WaitedEnough`` it waits for as many, among them all ``names``, which retain
    the newest states. For a run that is over, ``names`` are the workers that it had. ``stopping``: a stop was requested.
    """

    attempts: int = 0
    outcome: str = ""
    cause: str = ""
    kind: str = ""
    expected: int = 0
    names: tuple[str, ...] = ()
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedEnough:
    """The time for the workers of a restored ``run`` to come back is over."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdvanced:
    """``run`` has made a step for the first time: losses count from here."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterPlan:
    """There is a better plan for ``run`` than that of its ``attempt``, for the present workers (``cause`` says why)."""

    run: str
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The answer to the ``MakePlan`` of ``attempt``: who takes part, or why there is no plan (``kind``: the error's class)."""

    run: str
    attempt: int = 1
    devices: tuple[str, ...] = ()
    error: str = ""
    kind: str = TRAINING_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrepared:
    """A worker has its stages, data and states ready (``attempt``: for which plan; 0: for the current one)."""

    run: str
    name: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDropped:
    """A worker has dropped its part of plan number ``attempt``, and reported its retained states."""

    run: str
    name: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A worker finished its part (``attempt``: for which plan; 0: for the current one).

    ``whole``: up to the job's end; otherwise a stop or a migration was requested.
    """

    run: str
    name: str
    attempt: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """A worker's part failed (``lost_peer``: because another could not be reached); without ``name``, the run as a whole.

    ``kind`` is the class of the error (of ``farflung.errors``). ``batch``: on which it came. ``attempt`` as in ``RunPrepared``.
    ``blames``: the worker from which the numbers came on which it failed (empty: it failed by itself).
    ``outvoted_by``: workers that hold the same data as each other, and not those of ``name``.
    """

    run: str
    cause: str
    name: str = ""
    kind: str = TRAINING_ERROR
    lost_peer: bool = False
    attempt: int = 0
    batch: FailedBatch | None = None
    blames: str = ""
    outvoted_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A stop was requested, after the current step or ``now``."""

    run: str
    now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLied:
    """A member of ``run`` sent what no honest member sends."""

    run: str
    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLate:
    """A member is late in plan number ``attempt`` of ``run`` (0: the current one); ``what`` says what it did not do in time."""

    run: str
    name: str
    what: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpoilt:
    """The gradients of a member were not finite in ``step`` of ``run``, which tolerated it."""

    run: str
    name: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStalled:
    """Plan number ``attempt`` of ``run`` makes no step, or no step to rely on. ``suspects``: some of them are the reason."""

    run: str
    attempt: int
    cause: str
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReset:
    """The broker's owner resets the standing of a member."""

    name: str


Event = (
    MemberJoined
    | MemberMeasured
    | HostMeasured
    | MemberSlowed
    | MemberLost
    | MemberWants
    | RunSubmitted
    | RunRestored
    | WaitedEnough
    | RunAdvanced
    | BetterPlan
    | PlanMade
    | RunPrepared
    | RunDropped
    | RunEnded
    | RunFailed
    | StopRequested
    | MemberLied
    | MemberLate
    | MemberSpoilt
    | RunStalled
    | MemberReset
    | HelperMoves
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Plan ``run`` for the idle workers ``members``; ``attempt`` counts the plans that were asked for."""

    run: str
    members: tuple[str, ...]
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRun:
    """Send job, graphs and plan to ``name``."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Everyone is prepared: let ``name`` begin."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """Ask ``name`` to end the run after its current step."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateRun:
    """Let ``name`` end the attempt after its current step, with a checkpoint from which the next attempt begins."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissMember:
    """``name`` wants to leave and may: nobody needs it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRun:
    """Let ``name`` drop the run at once; ``keep``: the run continues, so it retains and reports its states."""

    run: str
    name: str
    cause: str
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverRun:
    """The run's attempt is over because of ``cause``; the next one begins when there are workers for it.

    ``migrated``: it ended between two steps, and nothing is repeated. Nobody is lost: there is a ``better`` plan, or a worker has
    failed and is ``replaced``.
    """

    run: str
    cause: str
    migrated: bool = False
    better: bool = False
    replaced: bool = False

    @property
    def then(self) -> str:
        """How the run continues, for people."""
        if self.better:
            return "the run continues with the new plan from the last step"
        return "other workers take over its part" if self.migrated else "the broker makes a new plan"

    @property
    def text(self) -> str:
        """What happened, and how the run continues."""
        return f"{'' if self.migrated or self.better or self.replaced else 'lost: '}{self.cause}; {self.then}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    """The run has lost workers and can't continue before ``missing`` more are idle."""

    run: str
    missing: int

    @property
    def text(self) -> str:
        """For what the run waits, and what to do."""
        more = counted(self.missing, "more worker")
        return f"waiting for {more}: add workers with farflung join, or end the run with farflung stop {self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJudged:
    """``name`` has lost standing in ``run``; ``text`` says why, and what resets it."""

    name: str
    run: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """The run is over: write its result (``outcome``: finished, stopped or failed; ``kind``: the class of what failed it)."""

    run: str
    outcome: str
    cause: str = ""
    kind: str = ""
    batch: FailedBatch | None = None


_PlanCommand = MakePlan | PrepareRun | StartRun | MigrateRun | RecoverRun | RunWaits
RunCommand = _PlanCommand | AskHelper | HelperGone | StopRun | AbortRun | MemberJudged | FinishRun
Command = RunCommand | DismissMember
