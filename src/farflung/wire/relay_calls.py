"""The one kind of frame that transports send by themselves: a relay calls a member that another one wants to reach."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.wire.frames import Frame

__all__ = ["RelayCall"]

_KIND = "relay-call"


@dataclass(frozen=True, slots=True)
class RelayCall:
    """``source`` waits at the relay, under ``token``."""

    source: str
    token: str

    def to_frame(self) -> Frame:
        """Return the frame of this call."""
        return Frame(_KIND, {"from": self.source, "token": self.token})

    @classmethod
    def of(cls, frame: Frame) -> RelayCall | None:
        """Return the call in ``frame`` (None: the frame is none). The fields of a malformed call are empty."""
        if frame.kind != _KIND:
            return None
        source, token = (frame.header.get(name) for name in ("from", "token"))
        return cls(source, token) if isinstance(source, str) and isinstance(token, str) else cls("", "")
