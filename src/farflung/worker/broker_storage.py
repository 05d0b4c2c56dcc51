"""What a worker stores at the broker and fetches from it: states, checkpoints, and the broker's clock."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from farflung.checkpoint import encode_shard
from farflung.clock import monotonic
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_stream import fetch_states, upload_frames
from farflung.messages.calls import Clock, ClockAnswer, ShardUpload, StatesRequest
from farflung.messages.remote_calls import ask
from farflung.telemetry.trace import ClockOffset, estimate_offset
from farflung.transports.rpc import RpcClient, RpcSession

__all__ = ["BrokerStorage"]

#: Seconds for an answer. A slow one would say little about the broker's clock.
_CLOCK_SECONDS = 5.0


class BrokerStorage:
    """States of runs that the broker stores. The compute thread calls; any thread may call ``break_off``."""

    def __init__(self, client: RpcClient, budget: MemoryBudget) -> None:
        """``budget``: what is fetched counts in it."""
        self._client, self._budget = client, budget
        self._uploading: RpcSession | None = None

    def states(self, run: str, source: str, names: Sequence[str]) -> dict[str, Array]:
        """Fetch tensors ``names`` of ``source`` ("checkpoint", "weights" or "optimizer")."""
        return fetch_states(self._client, StatesRequest(run=run, source=source, names=tuple(names)), self._budget)

    def upload(self, head: ShardUpload, tensors: Mapping[str, Array], report: Callable[[str], None]) -> None:
        """Store this worker's share of a checkpoint. ``report`` sends its SHA-256 to the broker in the session.

        Raises:
            ConnectionLost: the broker is lost, or ``break_off`` was called.
            DiskFull: the broker's disk is full.
            FarflungError: the broker refuses the share.
        """
        session = self._uploading = self._client.session("upload")
        try:
            for frame in upload_frames(head, _hashed(encode_shard(tensors), report)):
                session.send(frame)
            session.end()
        except ConnectionLost:
            pass  # the broker refused it: iterating raises why
        for _ in session:
            pass
        self._uploading = None

    def break_off(self) -> None:
        """End the upload that is under way, if there is one: it raises ``ConnectionLost``."""
        session = self._uploading
        if session is not None:
            session.close()

    def clock_offset(self) -> ClockOffset:
        """How far the broker's clock is from this machine's (its error is infinite if the broker does not answer)."""

        def ping() -> float:
            return ask(self._client, Clock(), ClockAnswer, timeout=_CLOCK_SECONDS).now

        try:
            return estimate_offset(ping, monotonic)
        except FarflungError:
            return ClockOffset(error=math.inf)


def _hashed(blocks: Iterable[bytes | memoryview], report: Callable[[str], None]) -> Iterator[bytes | memoryview]:
    """Yield ``blocks``, then report the SHA-256 of all of them."""
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
        yield block
    report(found.hexdigest())
