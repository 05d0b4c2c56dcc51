"""The submitting side: submit a job, send its weights and data, fetch its states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from farflung.checkpoint import FetchedReader
from farflung.client.control import ControlClient
from farflung.engines.base import Array
from farflung.errors import ConnectionLost
from farflung.messages.array_stream import fetch_states, upload_frames
from farflung.messages.calls import Export, Exported, StatesRequest, WeightsUpload
from farflung.messages.exports import read_exported
from farflung.messages.remote_calls import ask
from farflung.messages.submission import Bundle
from farflung.transports.base import FrameHandler
from farflung.transports.tcp.endpoint import TcpEndpoint

__all__ = ["Client"]


class Client(ControlClient):
    """A client that also submits jobs and exchanges tensors."""

    def send_weights(self, run: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Send a safetensors file that ``run`` shall begin with; before ``submit``."""
        session = self._rpc.session("upload")
        try:
            for frame in upload_frames(WeightsUpload(run=run), pieces):
                session.send(frame)
            session.end()
        except ConnectionLost:
            pass  # the broker refused it: iterating tells why
        for _ in session:
            pass

    def submit(self, bundle: Bundle, say: Callable[[str], None] = lambda line: None) -> Mapping[str, str]:
        """Hand in a job; it begins when enough workers are there. Returns ``run``, ``state`` and ``folder`` (at the broker).

        A job that resumes waits for as long as the broker reads the checkpoint (``say`` is told); a broker that dies meanwhile
        is noticed by the connection.
        """
        return self._accepted(bundle.to_message(), say)

    def states(self, run: str, names: Sequence[str]) -> dict[str, Array]:
        """States of the run's newest checkpoint."""
        return fetch_states(self._rpc, StatesRequest(run=run, source="checkpoint", names=tuple(names)))

    def export(self, run: str) -> tuple[FetchedReader, dict[str, bytes]]:
        """The newest checkpoint of a run that is over, and the files of its model, by name.

        Raises:
            InputError: the run still trains, or has written no checkpoint.
        """
        manifest, files = read_exported(ask(self._rpc, Export(run=run), Exported))
        return FetchedReader(manifest, lambda names: self.states(run, names)), files

    def endpoint(self, receive: FrameHandler = lambda peer, frame: None) -> TcpEndpoint:
        """An endpoint of this member, to send data to workers. ``receive`` takes the frames that they send."""
        return TcpEndpoint(self._membership.credentials, receive, listen="127.0.0.1:0")
