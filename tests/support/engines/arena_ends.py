"""Both ends of a shared memory."""

from dataclasses import dataclass

from farflung.engines.isolated.arena import Arena


@dataclass
class ArenaEnds:
    worker: Arena
    other: Arena
