"""What a worker stores at the broker and fetches from it: states, checkpoints, and the broker's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from farflung.checkpoint import encode_shard
from farflung.clock import monotonic
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.array_stream import pieces_of, read_arrays
from farflung.messages.fields import number
from farflung.telemetry.trace import ClockOffset, estimate_offset
from farflung.transports.rpc import RpcClient, RpcSession
from farflung.wire.frames import Frame

__all__ = ["BrokerStorage"]

_CLOCK_SECONDS = 5.0


class BrokerStorage:
    """States of runs that the broker stores. The compute thread calls; any thread may call ``break_off``."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client
        self._uploading: RpcSession | None = None

    def states(self, run: str, source: str, names: Sequence[str]) -> dict[str, Array]:
        """Fetch tensors ``names`` of ``source`` ("checkpoint", "weights" or "optimizer")."""
        request = Frame("states", {"run": run, "source": source, "names": list(names)})
        return read_arrays(self._client.stream("states", request))

    def upload(self, run: str, place: Mapping[str, int], tensors: Mapping[str, Array]) -> None:
        """Store this worker's share of a checkpoint (``place``: its ``step``, and how many steps are ``committed``).

        Raises:
            ConnectionLost: the broker is lost, or ``break_off`` was called.
            DiskFull: the broker's disk is full.
            FarflungError: the broker refuses the share.
        """
        session = self._uploading = self._client.session("upload")
        try:
            for frame in pieces_of(encode_shard(tensors), "shard", {"run": run, **place}):
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
            return number(self._client.call("clock", Frame("clock"), timeout=_CLOCK_SECONDS).header, "now")

        try:
            return estimate_offset(ping, monotonic)
        except FarflungError:
            return ClockOffset(error=math.inf)
