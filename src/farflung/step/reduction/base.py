"""The protocol of the engines that sum arrays over the replicas of a stage.

A sum has a stage and a tag. Every replica contributes its own arrays and waits for the result. All replicas get the same bits,
because each piece of a sum is added in one place in one order, and that order never depends on who arrives first. What differs
between engines is policy: the order of additions (``orders``), and how long a member waits for others (``Averaging.patience``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from farflung.engines.base import Array
from farflung.graph.ir import Use
from farflung.messages.router import PeerRouter

__all__ = ["GradientPart", "Reduction"]

ContributionT_contra = TypeVar("ContributionT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Reduction(Protocol[ContributionT_contra, ResultT_co]):
    """One worker's part in the sums of a run.

    Shapes: a contribution has the arrays of the stage in the same order on every replica. Results have the same shapes and
    element types. Order of addition: fixed by the plan and the job, never by arrival.
    """

    def contribute(self, contribution: ContributionT_contra) -> None:
        """Add own arrays to a sum (compute thread). The engine reads the arrays, and may write them, until ``wait`` returns."""

    def wait(self, stage: int, tag: str) -> ResultT_co:
        """Return the result of a sum (compute thread).

        Raises:
            BaseException: what ended the run meanwhile.
        """

    def register(self, router: PeerRouter) -> None:
        """Register what stores messages of peers (transport threads). A message may arrive before the own contribution.

        The handlers raise:
            WireError: the peer has no such part in this sum, or its arrays have other shapes or types.
            CodecError: a payload is malformed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPart:
    """A replica's contribution to the gradients of ``stage`` in ``step``.

    ``end``: the part covers micro-batches before this number, from the end of the previous part on. ``gradients``: by use, as
    ``StageRunner.take_gradients`` returns them; a use without a gradient is missing.
    """

    step: int
    stage: int
    end: int
    gradients: Mapping[Use, Array]
