"""What happens to a broker, and what it decides: plain data, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
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
    "HandOver",
    "HelperGone",
    "HostMeasured",
    "MakePlan",
    "MemberDrifted",
    "MemberJoined",
    "MemberLost",
    "MemberMeasured",
    "MemberWants",
    "Offer",
    "PlanMade",
    "PrepareRun",
    "RecoverRun",
    "RunAdvanced",
    "RunDropped",
    "RunEnded",
    "RunFailed",
    "RunPrepared",
    "RunRestored",
    "RunSubmitted",
    "StartRun",
    "StopRequested",
    "StopRun",
    "WaitedEnough",
]

#: The class of errors that nothing more precise is known of.
TRAINING_ERROR = "TrainingError"
#: The class of the error that there is no plan for the workers that are there.
PLAN_ERROR = "PlanError"
#: That of the error that what somebody gave (the job's topology) does not go with them.
INPUT_ERROR = "InputError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker offers: memory in bytes, achieved speed in FLOP/s, device kind and its versions.

    ``factor``: lambda, the achieved share of the peak. ``overhead``: seconds that each operator costs beside its FLOPs.
    ``convolution``: how many times as fast as other operators convolutions run.
    ``host``: the same for all workers of one machine (empty: not known). ``processors``: what it computes on there; workers of a
    host that have one in common share it. ``relay``: it may relay between members of its runs.
    ``reliable``: it stays; else it may go at any time without a word.
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


# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWants:
    """A worker's owner has other wishes: to be left out for a while, or to go (``parting``: ``drain``, ``leave``).

    ``memory``: bytes that training may use from now on (None: as before).
    """

    name: str
    paused: bool = False
    parting: str = ""
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A worker opened its session; ``address`` is where its peers reach it, ``wants`` what its owner wants (None: nothing)."""

    name: str
    address: str
    offer: Offer
    generation: int = 0
    wants: MemberWants | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMeasured:
    """An idle worker has measured its device anew: achieved speed in FLOP/s, lambda, seconds per operator.

    ``share``: of that speed what it reached while the other workers of its host measured, too (None: it measured alone).
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
class MemberDrifted:
    """A training worker computes lastingly slower (``times`` above 1: a step takes so many times as long), or faster again."""

    name: str
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """A worker's session broke or ended."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmitted:
    """A job was handed in; it starts when ``workers`` idle workers are there (None: when any is).

    ``recoveries``: how many losses in a row, without a new step between them, it survives (0: the first one ends it).
    ``helped``: its plans are for reliable workers, and unreliable ones help these; ``unreliable``: who is so by its topology.
    """

    run: str
    workers: int | None
    recoveries: int = 0
    helped: bool = False
    unreliable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestored:
    """A run that an earlier life of the broker left behind.

    ``attempts``: how many that life had begun, or more. ``outcome``: how it had ended (empty: it had not), with ``cause`` and
    ``kind``. ``hoped``: how many workers it had; it waits for as many until ``WaitedEnough``, among them those
    ``named``, who hold the newest states. Of a run that is over, ``named`` are the workers that it had.
    ``stopping``: somebody has asked for its end.
    """

    run: str
    workers: int | None
    recoveries: int = 0
    attempts: int = 0
    outcome: str = ""
    cause: str = ""
    kind: str = ""
    hoped: int = 0
    named: tuple[str, ...] = ()
    helped: bool = False
    unreliable: frozenset[str] = frozenset()
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedEnough:
    """The workers that ``run`` had before the broker was started again have had their time to come back."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdvanced:
    """``run`` has made a step that it had never made before: losses count from here."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterPlan:
    """There is a better plan for ``run`` than that of its ``attempt``, for those who are there now (``cause`` says why)."""

    run: str
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The planner answered: the devices that take part, or why there is no plan (``kind``: the error's class).

    ``attempt`` is that of the ``MakePlan`` which is answered.
    """

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
    """A worker has let go of its part, as ``AbortRun`` with ``keep`` asked, and told what it still holds (``attempt``: of which
    plan)."""

    run: str
    name: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A worker finished its part (``attempt``: for which plan; 0: for the current one).

    ``whole``: up to the job's end; else it stopped before, because somebody asked for it or to hand over.
    """

    run: str
    name: str
    attempt: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """A worker's part failed (``lost_peer``: because another could not be reached); without ``name``, the run as a whole.

    ``kind`` is the class of the error (of ``farflung.errors``). ``attempt`` as in ``RunPrepared``.
    """

    run: str
    cause: str
    name: str = ""
    kind: str = TRAINING_ERROR
    lost_peer: bool = False
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody asked the run to end after its current step, or ``now``."""

    run: str
    now: bool = False


Event = (
    MemberJoined
    | MemberMeasured
    | HostMeasured
    | MemberDrifted
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
)


# -- commands -------------------------------------------------------------------------------------------------------------


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
class AskHelper:
    """Let ``name`` help one of the run's servers."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperGone:
    """``name`` helps the run no more: its server is to be told."""

    run: str
    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """Ask ``name`` to end the run after its current step."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Ask ``name`` to end the attempt after its current step, with a checkpoint that the next one goes on from."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissMember:
    """``name`` wanted to go and may: nobody needs it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRun:
    """Tell ``name`` to drop the run at once; ``keep``: it will go on, so what it holds is to be kept and told."""

    run: str
    name: str
    cause: str
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverRun:
    """The run's attempt is over because of ``cause``; the next one begins when there are workers for it.

    ``handed``: it ended between two steps, and nothing is made again. ``better``: nobody is lost, there is a better plan.
    """

    run: str
    cause: str
    handed: bool = False
    better: bool = False

    @property
    def then(self) -> str:
        """How it goes on, for people."""
        if self.better:
            return "the run continues with the new plan from the last step"
        return (
            "other workers take over its part"
            if self.handed
            else "the run continues from the state on the other workers, or from its newest checkpoint"
        )

    @property
    def told(self) -> str:
        """What happened, and how it goes on."""
        return f"{'' if self.handed or self.better else 'lost: '}{self.cause}; {self.then}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """The run is over: write its result (``outcome``: done, stopped or failed; ``kind``: the class of what failed it)."""

    run: str
    outcome: str
    cause: str = ""
    kind: str = ""


Command = (
    MakePlan
    | PrepareRun
    | StartRun
    | AskHelper
    | HelperGone
    | StopRun
    | HandOver
    | DismissMember
    | AbortRun
    | RecoverRun
    | FinishRun
)
