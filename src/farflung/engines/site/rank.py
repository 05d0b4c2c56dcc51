"""The channel to one rank: calls can be begun on all ranks before the first answer is awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from farflung.engines.base import Array, Forward, MicroBatch
from farflung.engines.encoded_value import SentValues
from farflung.engines.isolated.arena import Arena
from farflung.engines.isolated.control import Call, Done, EngineCall, Fold, Message, Method
from farflung.engines.isolated.engine import AttemptEngine
from farflung.engines.isolated.process import Compute
from farflung.engines.isolated.runner import IsolatedRunner
from farflung.errors import EngineCrashed, FarflungError, WireError
from farflung.graph.ir import ValueRef

__all__ = ["Pending", "RankEngine", "RankStage", "wait_for_all"]

T = TypeVar("T")


class Pending(Generic[T]):
    """A call that was begun. ``finish`` waits for its answer and copies it out of the shared memory."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._error: BaseException | None = None
        self._found: list[T] = []

    @property
    def settled(self) -> bool:
        """Whether somebody has waited for the answer."""
        return self._finish is None

    def settle(self) -> None:
        """Wait for the answer, if nobody has. An error is kept for ``result``."""
        finish, self._finish = self._finish, None
        if finish is None:
            return
        try:
            self._found.append(finish())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error

    def result(self) -> T:
        """Return the answer; errors as those of the call."""
        self.settle()
        if self._error is not None:
            raise self._error
        return self._found[0]


def wait_for_all(pending: Sequence[Pending[T]], ranks: Sequence[RankEngine], what: str) -> list[T]:
    """Return the answers of all ranks to a call in which they wait for each other.

    The first error ends the site: the other ranks would wait for the one that has failed. If a rank dies, the error of
    another one that waited for it can arrive first, so the guard is asked.

    Raises:
        EngineCrashed: one has died.
        FarflungError: one refuses.
    """
    waiting = dict(enumerate(pending))
    try:
        while waiting:
            ready = ranks[0].answered([rank for rank, one in waiting.items() if not one.settled], what)
            for rank in [rank for rank, one in waiting.items() if one.settled or rank in ready] or list(waiting)[:1]:
                waiting.pop(rank).result()
    except BaseException as error:
        refused = isinstance(error, FarflungError) and not isinstance(error, (EngineCrashed, WireError))
        death = ranks[0].death(what) if refused else None
        ranks[0].end()
        if death is not None:
            raise death from error
        raise
    return [one.result() for one in pending]


class RankEngine(AttemptEngine):
    """The engine of one rank. A new message first settles the call that was begun before it."""

    def __init__(self, compute: Compute, version: str, rank: int) -> None:
        super().__init__(compute, version, rank)
        self._begun: Pending[Forward] | Pending[SentValues] | Pending[Done] | None = None

    @contextmanager
    def message(self) -> Iterator[Arena]:
        """See ``AttemptEngine``."""
        with self._lock:
            if self._begun is not None:
                self._begun.settle()
                self._begun = None
            with super().message() as arena:
                yield arena

    def begin(self, make: Callable[[Arena], Message], finish: Callable[[], T]) -> Pending[T]:
        """Send the message that ``make`` writes; ``finish`` takes the answer."""

        def locked() -> T:
            with self._lock:
                return finish()

        with self.message() as arena:
            self.post(make(arena))
            self._begun = pending = Pending(locked)  # type: ignore[assignment]
        return pending

    def answered(self, ranks: Sequence[int], what: str) -> list[int]:
        """Wait until one of ``ranks`` of the site has answered; return those that have."""
        return self._compute.readable(ranks, what) if ranks else []

    def death(self, what: str) -> EngineCrashed | None:
        """Return how a rank of the site has died in ``what`` (None: all live)."""
        return self._compute.death(f"in {what}")

    def begin_engine_call(self, call: EngineCall, what: str) -> Pending[Done]:
        """Begin a call of the engine."""
        return self.begin(lambda _: call, lambda: self.answer(what))

    def runner(self, opened: IsolatedRunner) -> RankStage:
        """The stage of this rank that ``opened`` is."""
        return RankStage(self, opened)


class RankStage:
    """The stage of one rank: its runner, and calls that are only begun."""

    def __init__(self, attempt: RankEngine, runner: IsolatedRunner) -> None:
        self.attempt, self.runner = attempt, runner

    def begin_forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Pending[Forward]:
        """Begin a forward."""
        runner = self.runner
        return self.attempt.begin(lambda arena: runner.forward_call(arena, key, values, data), runner.forwarded)

    def begin_backward(
        self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float, folds: tuple[Fold, ...] = ()
    ) -> Pending[SentValues]:
        """Begin a backward. ``folds``: what the ranks add in it, if they divide the parameters."""
        runner = self.runner
        return self.attempt.begin(lambda arena: runner.backward_call(arena, key, gradients, weight, folds), runner.went_back)

    def begin_call(self, method: Method, make: Callable[[Arena], Mapping[str, object]] = lambda _: {}) -> Pending[Done]:
        """Begin another call; ``make`` writes the arrays among its fields."""
        number = self.runner.number

        def message(arena: Arena) -> Call:
            return Call(runner=number, method=method, **make(arena))  # type: ignore[arg-type]

        return self.attempt.begin(message, lambda: self.attempt.answer(f"the {method.replace('_', ' ')}"))
