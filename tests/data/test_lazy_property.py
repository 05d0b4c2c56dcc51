"""A read that never returns blocks no other data source of its class."""

from __future__ import annotations

import threading

from farflung.data.lazy_property import lazy_property


class Source:
    """Its text waits for a gate."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.times = gate, 0

    @lazy_property
    def text(self) -> str:
        """The text."""
        self.times += 1
        self.gate.wait()
        return "text"


def test_it_is_computed_once() -> None:
    gate = threading.Event()
    gate.set()
    source = Source(gate)
    assert (source.text, source.text, source.times) == ("text", "text", 1)
    assert Source.__dict__["text"].__doc__ == "The text."


def test_others_are_computed_meanwhile() -> None:
    closed, opened = threading.Event(), threading.Event()
    opened.set()
    first = Source(closed)
    hangs = threading.Thread(target=lambda: first.text)
    hangs.start()
    try:
        found: list[str] = []
        reads = threading.Thread(target=lambda: found.append(Source(opened).text), daemon=True)
        reads.start()
        reads.join(20)
        assert found == ["text"]
    finally:
        closed.set()
        hangs.join()
