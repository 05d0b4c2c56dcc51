"""What a link needs of its endpoint."""

from __future__ import annotations

from typing import Protocol, TypeVar

from farflung.errors import FarflungError
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Arrival
from farflung.transports.config import TransportConfig
from farflung.transports.tcp.adaptation import Cap
from farflung.transports.tcp.byte_counts import Others
from farflung.wire.frames import Frame, FrameLimits

__all__ = ["LinkHost"]

#: The type of the links.
_Link_contra = TypeVar("_Link_contra", contravariant=True)


class LinkHost(Protocol[_Link_contra]):
    """The endpoint, as its links see it."""

    @property
    def config(self) -> TransportConfig:
        """The settings."""

    @property
    def threads(self) -> ThreadGroup:
        """The endpoint's threads; the endpoint joins them."""

    @property
    def cap(self) -> Cap:
        """What may be sent to all peers together."""

    def limits(self, peer: str) -> FrameLimits:
        """What frames of ``peer`` may hold now."""

    def frame(self, peer: str, frame: Frame) -> None:
        """Handle a frame."""

    def arrival(self, arrival: Arrival) -> None:
        """A frame of ``arrival.nbytes`` came."""

    def dial_link(self, link: _Link_contra) -> bool:
        """Make one more connection for ``link``; False: nobody knows where the peer is.

        Raises:
            FarflungError: it can't be reached.
        """

    def can_dial(self, link: _Link_contra) -> bool:
        """Whether the peer can be dialled at all; else it dials."""

    def link_over(self, link: _Link_contra, error: FarflungError, *, told: bool) -> None:
        """``link`` is no more; ``told``: those who wait for the peer's frames must hear of it."""

    def others(self, link: _Link_contra) -> Others:
        """What goes over the other links."""

    def log(self, text: str) -> None:
        """Tell the person at this machine."""
