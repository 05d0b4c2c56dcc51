"""Named points where a test can make something fail.

Code under test calls ``fault_point("worker.before_update", step=3)``. Nothing happens, at the price of one comparison, unless
an injector listens; the injector may raise, wait on something of its own, or end the process. The injector is the one
piece of process-wide state in farflung that is not constant: points lie deep inside threads that tests do not start themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["FAULT_POINTS", "Injector", "fault_point", "injecting"]

#: The names that code may use, with what has happened when such a point is reached. ``worker`` points tell ``step`` and
#: ``device``, ``helper`` points too, ``checkpoint`` points the step; ``link`` points are not reached yet.
FAULT_POINTS: Mapping[str, str] = {
    "worker.before_forward": "the inputs of a micro-batch are here, its forward has not begun",
    "worker.before_backward": "the gradients of a micro-batch are here, its backward has not begun",
    "worker.begins": "a plan is here, and what it needs of other workers' memory; the stages have no states yet",
    "worker.prepared": "all gradients of a step are complete and held on this worker, and perhaps nowhere else",
    "worker.before_update": "all gradients of a step are complete on this worker, nothing is applied",
    "worker.after_update": "the step is applied on this worker",
    "helper.before_forward": "what a forward of a slice needs has come to a helper, which has not begun",
    "helper.before_backward": "the same for a backward",
    "helper.before_answer": "a helper has done its task, and nobody knows",
    "link.before_send": "a value is encoded, nothing of it is on the wire",
    "link.after_receive": "a frame has arrived and is not decoded",
    "worker.before_join": "the connection to the broker is made, the worker has not said what it offers",
    "broker.before_plan": "workers are there for a run, its plan is not made",
    "broker.before_start": "all workers are ready for a plan, none was told to begin",
    "broker.before_replay": "a broker was started again, and has not read its journal",
    "disk.before_write": "a file of a checkpoint, of metrics or of the journal will be written",
    "checkpoint.before_shard": "no file of this checkpoint's shard exists",
    "checkpoint.before_manifest": "all shards are written, the manifest is not",
    "checkpoint.after_manifest": "the checkpoint is complete, older ones are not yet removed",
}

Injector = Callable[[str, Mapping[str, int | str]], None]
_injector: Injector | None = None


def fault_point(name: str, **facts: int | str) -> None:
    """Give an installed injector its chance to fail here; ``name`` is a key of ``FAULT_POINTS``."""
    if _injector is not None:
        _injector(name, facts)


@contextmanager
def injecting(injector: Injector) -> Iterator[None]:
    """Install ``injector`` for the block, in all threads of this process.

    Raises:
        RuntimeError: another one is installed; injectors do not nest, because two would see each other's failures.
    """
    global _injector  # noqa: PLW0603 - the documented hook
    if _injector is not None:
        raise RuntimeError("a fault injector is installed already; end its block first")
    _injector = injector
    try:
        yield
    finally:
        _injector = None
