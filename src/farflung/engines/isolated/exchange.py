"""The exchange of messages with the process of one attempt: one at a time, with arrays in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

from farflung.engines.base import Array
from farflung.engines.isolated.arena import Arena, Slot
from farflung.engines.isolated.control import Done, Message, Reached, Resume
from farflung.engines.isolated.process import Compute
from farflung.memory_budget import MemoryBudget

__all__ = ["Exchange"]


class Exchange:
    """Messages to one of the processes of ``compute``, and their answers."""

    def __init__(self, compute: Compute, rank: int = 0) -> None:
        """``rank``: which of the processes of ``compute``."""
        self._compute, self.rank = compute, rank
        #: One exchange at a time; reentrant, because gradients are taken inside a backward.
        self._lock = RLock()

    @contextmanager
    def message(self) -> Iterator[Arena]:
        """The shared memory to write a message's arrays into; inside, ``ask`` sends the message."""
        with self._lock:
            arena = self._compute.arenas[self.rank]
            arena.begin()
            yield arena

    def ask(self, message: Message, what: str, ready: Callable[[int], None] | None = None) -> Done:
        """Send a message and return the answer; ``ready`` is called as ``StageRunner.watch`` says.

        Raises:
            FarflungError: the engine refuses, with its own error.
            EngineCrashed: the process has died, or does not answer in time.
        """
        self.post(message)
        return self.answer(what, ready)

    def post(self, message: Message) -> None:
        """Send a message; ``answer`` must follow, inside the same ``message``."""
        self._compute.post(message, self.rank)

    def answer(self, what: str, ready: Callable[[int], None] | None = None) -> Done:
        """The answer to the last message, as ``ask`` returns it."""
        answer = self._compute.answer(what, self.rank)
        while isinstance(answer, Reached):
            try:
                if ready is not None:
                    ready(answer.index)
            except BaseException:
                self.end()  # it waits inside a backward that nobody will go on with
                raise
            self._compute.arenas[self.rank].begin()
            self.post(Resume())
            answer = self._compute.answer(what, self.rank)
        return answer

    def copy(self, slot: Slot, budget: MemoryBudget) -> Array:
        """A copy of an array of the last answer, which counts in ``budget``."""
        return self._compute.arenas[self.rank].copy(slot, budget)

    def release(self) -> None:
        """Give back the memory of large messages, such as those with states."""
        with self._lock:
            self._compute.arenas[self.rank].release()

    def end(self) -> None:
        """End the process, from any thread: calls raise ``EngineCrashed`` from now on."""
        self._compute.end()
