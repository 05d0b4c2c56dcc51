"""What servers of a stage, and their helpers, send each other on the data plane (``step.hybrid``)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from farflung.messages.data import ArraysMessage, RunMessage
from farflung.messages.schema import ANY_SECTIONS, Amount, Channel, Count, Index, Names

__all__ = ["HelperStates", "ServerFree", "ServerServed", "SliceAnswer", "SliceTask", "When"]

#: When states hold; see ``HelperStates``.
When = Literal["now", "ahead", "held"]

_TASK = ("run", "step", "stage", "kind", "index")


class HelperStates(ArraysMessage, kind="states", on=Channel.DATA, sections=ANY_SECTIONS, first=("run", "step", "names", "when")):
    """States of the stage, from a server to its helper.

    ``when``: for the step that begins (``now``), for the next one (``ahead``), or the states came ahead and hold now (``held``).
    """

    step: Count
    names: Names
    when: Literal["now", "ahead", "held"]


class SliceTask(ArraysMessage, kind="task", on=Channel.DATA, sections=ANY_SECTIONS, first=(*_TASK, "weight", "inputs")):
    """Compute the forward or backward of slice ``index``.

    ``inputs``: the slice's inputs come with it. ``weight``: of its loss.
    """

    step: Count
    stage: Index
    kind: Literal["F", "B"]
    index: Index
    weight: float
    inputs: bool


class SliceAnswer(ArraysMessage, kind="answer", on=Channel.DATA, sections=ANY_SECTIONS, first=(*_TASK, "seconds", "outputs")):
    """The result of a ``SliceTask``, which took ``seconds``."""

    step: Count
    stage: Index
    kind: Literal["F", "B"]
    index: Index
    seconds: Amount
    outputs: Annotated[dict[Literal["loss"], float], Meta(max_length=1)]


class ServerFree(RunMessage, kind="free", on=Channel.DATA):
    """The sender has computed its own slices of ``stage`` and takes a task of the receiver's."""

    step: Count
    stage: Index


class ServerServed(RunMessage, kind="served", on=Channel.DATA):
    """All slices of ``stage`` that belong to the sender are done in ``step``."""

    step: Count
    stage: Index
