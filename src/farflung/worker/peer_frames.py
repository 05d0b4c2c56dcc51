"""Where a worker decodes what peers send: each frame once, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from farflung.errors import WireError
from farflung.messages.data import PeerHello, ProbeBytes, RunMessage, StatesWanted
from farflung.messages.router import Router
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode
from farflung.transports.meter import frame_bytes
from farflung.wire.frames import Frame
from farflung.worker.run_part import CurrentPart, Sender

__all__ = ["PeerFrames"]


class PeerFrames:
    """Decodes frames of the data plane, and gives each message to the part that it is for. Transport threads call ``receive``."""

    def __init__(self, current: CurrentPart, lend: Callable[[str, StatesWanted], None]) -> None:
        """``lend`` sends a peer the retained states that it wants."""
        self._current = current
        self._router = Router[Sender, None](Channel.DATA, self._pass_to_part)
        self._router.register(StatesWanted, lambda sender, wanted: lend(sender.peer, wanted))
        for arrival in (PeerHello, ProbeBytes):
            self._router.register(arrival, lambda sender, message: None)  # it has done its work by arriving

    def receive(self, peer: str, frame: Frame) -> None:
        """Decode ``frame`` and handle its message. A message of an older attempt is dropped.

        Raises:
            WireError: the frame is malformed, or its message does not belong here.
            FarflungError: what the handler raises.
        """
        try:
            message = decode(frame, Channel.DATA)
        except WireError as error:
            part = self._current.part
            if part is not None:
                part.on_malformed(peer, error)
            raise
        self._router.dispatch(Sender(peer, frame_bytes(frame)), message)

    def _pass_to_part(self, sender: Sender, message: RunMessage) -> None:
        part = self._current.named(message.run)
        if part is not None:
            part.on_message(sender, message)
