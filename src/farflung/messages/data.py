"""What the members of a run send each other on the data plane: values, sums over replicas, votes, copies and retained states.

``run`` is the name of the attempt (``step.run_setup.attempt_name``). Helpers and peer servers: ``messages.hybrid``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from farflung.messages.array_headers import ArrayHeader, ArrayItem, PayloadHeader
from farflung.messages.schema import (
    ANY_SECTIONS,
    ONE_SECTION,
    UNSET,
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
    Positive,
    Run,
    SectionedMessage,
    UnsetType,
    Version,
    field,
)

__all__ = [
    "ArraysMessage",
    "Batch",
    "BatchKey",
    "CopyEnd",
    "CopyLacksBase",
    "CopyPiece",
    "CopyWhole",
    "EvaluationVote",
    "InputsWanted",
    "LayerExchange",
    "LentEnd",
    "LentPiece",
    "LocalStepTime",
    "LossScaleState",
    "Losses",
    "MeanPieces",
    "Norms",
    "PartialSum",
    "PeerHello",
    "PieceItem",
    "PreviousNorms",
    "ProbeBytes",
    "RunMessage",
    "SideKey",
    "SideValues",
    "Slope",
    "StateKey",
    "StatesWanted",
    "StepReady",
    "Token",
    "Total",
    "UnitInputs",
    "UseKey",
    "Value",
    "ValueKey",
    "Verdict",
]

_MOST_ARRAYS = 65_535
_MOST_LOSSES = 1_000_000

#: State -> number. A norm or a loss may be infinite or not a number: the receiver decides what follows.
Numbers = Annotated[dict[Name, float], Meta(max_length=200_000)]


class RunMessage(SectionedMessage):
    """Base of messages of one attempt of a run. Most have no sections."""

    run: Run


class ArraysMessage(RunMessage):
    """Base of messages with several arrays; ``arrays`` says which sections belong to which. ``None``: there is no array."""

    arrays: Annotated[tuple[ArrayItem | None, ...], Meta(max_length=_MOST_ARRAYS)]


# -- links ----------------------------------------------------------------------------------------------------------------


class PeerHello(Message, kind="hello", on=Channel.DATA):
    """Nothing but a reason to connect: a peer that cannot dial this worker is dialed."""


class ProbeBytes(SectionedMessage, kind="probe", on=Channel.DATA, sections=(0, 1)):
    """Bytes of a bandwidth probe. The receiver drops them."""


# -- values ---------------------------------------------------------------------------------------------------------------


class ValueKey(Item, array_like=True, tag="value"):
    """The value (or its gradient) of an edge of the plan, for one micro-batch. ``source`` and ``target``: stages."""

    phase: Label
    step: Count
    micro_batch: Index
    value: Name
    source: Index
    target: Index
    gradient: bool


class UseKey(Item, array_like=True, tag="use"):
    """The gradient of one use of a tied parameter, for the replica of ``stage`` that holds the parameter."""

    step: Count
    stage: Index
    state: Name
    op: Name


class SideKey(Item, array_like=True, tag="side"):
    """A value of an evaluation or of text generation."""

    phase: Label
    step: Count
    number: Index
    value: Name
    source: Index
    target: Index


class StateKey(Item, array_like=True, tag="state"):
    """A state that training reads nowhere, for the piece of an evaluation that reads it: piece number ``stage``."""

    phase: Label
    stage: Index
    name: Name


class Value(RunMessage, kind="value", on=Channel.DATA, sections=ANY_SECTIONS):
    """A value on its way to the worker that reads it, through the link's codec.

    ``payload``: the codec's header (none: uncompressed). ``difference`` and ``message``: a payload relative to the sample
    cache, and how many messages came before. ``samples``: how many sample numbers the last section holds.
    """

    key: ValueKey | UseKey
    source: Index | UnsetType = field(name="from", default=UNSET)
    array: ArrayHeader
    payload: PayloadHeader | UnsetType = UNSET
    difference: PayloadHeader | UnsetType = UNSET
    message: Count | UnsetType = UNSET
    samples: Version | UnsetType = UNSET


class SideValues(ArraysMessage, kind="values", on=Channel.DATA, sections=ANY_SECTIONS, first=("run", "keys")):
    """What one action of an evaluation, of text generation or of serving gives one worker: an uncompressed array for each key."""

    keys: Annotated[tuple[SideKey | StateKey, ...], Meta(max_length=_MOST_ARRAYS)]


class BatchKey(Item, array_like=True):
    """A placeholder of one micro-batch, of training (``data``) or of an evaluation (``eval``)."""

    use: Literal["data", "eval"]
    step: Count
    micro_batch: Index
    name: Name


class Batch(RunMessage, kind="data", on=Channel.DATA, sections=ONE_SECTION):
    """An input of a micro-batch, from the process that submitted the job. A worker takes inputs of the next step at most."""

    key: BatchKey
    step: Count
    array: ArrayHeader


# -- sums over replicas ---------------------------------------------------------------------------------------------------


class PartialSum(
    ArraysMessage, kind="part", on=Channel.DATA, sections=ANY_SECTIONS, first=("run", "step", "stage", "bucket", "part")
):
    """A replica's sum of a bucket of gradients, on its way to whoever adds it. ``part``: its place in the order of addition."""

    step: Count
    stage: Index
    bucket: Index
    part: Index


class Total(
    ArraysMessage, kind="total", on=Channel.DATA, sections=ANY_SECTIONS, first=("run", "step", "stage", "bucket", "part")
):
    """The sum of a bucket over all replicas, on its way back. ``part`` is 0."""

    step: Count
    stage: Index
    bucket: Index
    part: Index


class LayerExchange(ArraysMessage, kind="sync", on=Channel.DATA, sections=ANY_SECTIONS, first=("run", "stage", "tag")):
    """A replica's layers for an exchange of the sync strategy, named by ``tag``."""

    stage: Index
    tag: Label


class PieceItem(Item):
    """A piece of an averaged exchange. ``mean``: it is the mean, and ``missing`` are the ranks that did not come in time."""

    tag: Label
    piece: Index
    sections: Annotated[int, Meta(ge=0, le=0xFFFF)]
    mean: Flag = UNSET
    missing: Annotated[tuple[Index, ...], Meta(max_length=_MOST_ARRAYS)] | UnsetType = UNSET


class MeanPieces(RunMessage, kind="pieces", on=Channel.DATA, sections=ANY_SECTIONS):
    """Pieces of averaged exchanges, or their means: as many as fit one frame."""

    stage: Index
    pieces: Annotated[tuple[PieceItem, ...], Meta(max_length=_MOST_ARRAYS)]


class Slope(RunMessage, kind="slope", on=Channel.DATA, sections=ONE_SECTION):
    """Finite differences of the loss along seeded directions, the oldest first, in as many bits as the strategy says."""

    step: Count


# -- verification --------------------------------------------------------------------------------------------------------


class InputsWanted(RunMessage, kind="inputs_wanted", on=Channel.DATA):
    """Ask for the inputs of a unit: its worker, or the first verifier."""

    step: Count
    stage: Index
    micro_batch: Index


class UnitInputs(ArraysMessage, kind="inputs", on=Channel.DATA, sections=ANY_SECTIONS):
    """Answers ``InputsWanted``: values and gradients from other stages (no arrays: they are not retained any more)."""

    step: Count
    stage: Index
    micro_batch: Index


# -- the end of a step ----------------------------------------------------------------------------------------------------


class Losses(RunMessage, kind="losses", on=Channel.DATA):
    """Micro-batch -> loss, from a worker that makes losses to the leader."""

    step: Count
    losses: Annotated[dict[Label, float], Meta(max_length=_MOST_LOSSES)]


class Verdict(RunMessage, kind="verdict", on=Channel.DATA):
    """The leader's decision about a step, for all others.

    ``finite``: all losses are numbers; ``bad``: the micro-batches whose losses are not. ``stop``: this step is the last.
    ``save``: a checkpoint follows. ``copy``: a copy of the states to their guards follows.
    """

    step: Count
    finite: bool
    bad: Annotated[tuple[Index, ...], Meta(max_length=_MOST_LOSSES)]
    losses: Annotated[tuple[float, ...], Meta(max_length=_MOST_LOSSES)]
    stop: bool
    save: bool
    copy_states: bool = field(name="copy")


class LossScaleState(RunMessage, kind="loss-scale", on=Channel.DATA):
    """The loss scale of a step, and the steps in a row without an overflow, for all workers when an attempt begins."""

    step: Count
    scale: Positive
    calm: Count


class Norms(RunMessage, kind="norms", on=Channel.DATA):
    """Norms of the gradients of a stage, for clipping by the norm over all stages."""

    step: Count
    norms: Numbers


class PreviousNorms(RunMessage, kind="norm", on=Channel.DATA):
    """Norms of the gradients of a stage in the step that is over, for clipping the next one."""

    step: Count
    norms: Numbers


class StepReady(RunMessage, kind="prepared", on=Channel.DATA):
    """The gradients of a step are complete and retained: the first phase of the commit."""

    step: Count


class LocalStepTime(RunMessage, kind="pace", on=Channel.DATA):
    """The median time of a pipeline's local steps in the period that ends at ``place``, in seconds."""

    place: Count
    seconds: Amount


class EvaluationVote(RunMessage, kind="eval-done", on=Channel.DATA):
    """Micro-batch ``index`` of an evaluation is done. ``stop``: the evaluation ends early."""

    step: Count
    index: Index
    stop: bool


class Token(RunMessage, kind="token", on=Channel.DATA):
    """Token number ``index`` of the generated text. ``stop``: it is the last."""

    step: Count
    index: Index
    token: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    stop: bool


# -- copies and retained states -------------------------------------------------------------------------------------------


class CopyPiece(RunMessage, kind="copy", on=Channel.DATA, sections=ONE_SECTION, first=("name", "array", "last", "coded", "base")):
    """A piece of a copied tensor, in order.

    ``coded``: its bytes before it was coded relative to the copy of step ``base`` (None: by itself).
    """

    name: Name
    array: ArrayHeader
    last: bool
    coded: Count | UnsetType = UNSET
    base: Count | UnsetType | None = UNSET


class CopyEnd(RunMessage, kind="copy-end", on=Channel.DATA):
    """A copy is complete: the states after ``step`` steps, ``committed`` of which count."""

    step: Count
    committed: Count


class CopyWhole(RunMessage, kind="copied", on=Channel.DATA):
    """A guard has the whole copy of ``owner`` after ``step``, for the leader. ``nbytes``: on the link."""

    owner: Member
    step: Count
    nbytes: Count


class CopyLacksBase(RunMessage, kind="copy-lacks", on=Channel.DATA):
    """A guard lacks the copy that the last one was coded by: send it whole."""


class StatesWanted(RunMessage, kind="want", on=Channel.DATA):
    """Send retained states of the run ``base`` for its attempt ``attempt``.

    The holder answers with ``LentPiece`` and ``LentEnd``.
    """

    base: Run
    attempt: Version
    names: Names


class LentPiece(RunMessage, kind="lent", on=Channel.DATA, sections=ONE_SECTION, first=("name", "array", "last")):
    """A piece of a retained tensor, in order. ``last``: the tensor is complete."""

    name: Name
    array: ArrayHeader
    last: bool


class LentEnd(RunMessage, kind="lent-end", on=Channel.DATA):
    """All that was wanted and is retained has been sent."""
