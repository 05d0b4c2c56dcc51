"""The operator that runs now, written where another process can read it after a crash."""

from __future__ import annotations

__all__ = ["LABEL_BYTES", "PRESENT", "PresentOperator", "label"]

LABEL_BYTES = 256


def label(text: str) -> bytes:
    """``text`` as ``PresentOperator.memory`` takes it: cut, and filled up with zeros."""
    return text.encode("utf-8", "replace")[:LABEL_BYTES].ljust(LABEL_BYTES, b"\0")


class PresentOperator:
    """``memory[:] = label(...)`` before each operator costs 0.1 us. The process that computes shares this memory."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(LABEL_BYTES))

    def share(self, memory: memoryview) -> None:
        """Write labels into ``memory``, ``LABEL_BYTES`` that another process reads."""
        self.memory = memory

    def clear(self) -> None:
        """No operator runs."""
        self.memory[:] = bytes(LABEL_BYTES)

    def text(self) -> str:
        """The operator that runs, or that ran when the process died (empty: none)."""
        found = bytes(self.memory).rstrip(b"\0").decode("utf-8", "replace")
        return "".join(letter if letter.isprintable() else "?" for letter in found)


#: This process's.
PRESENT = PresentOperator()
