"""All targets by name."""

from benchmarks.faults.decoders.documents import TARGETS as DOCUMENTS
from benchmarks.faults.decoders.pages import TARGETS as PAGES
from benchmarks.faults.decoders.target import Target
from benchmarks.faults.decoders.wire import TARGETS as WIRE

__all__ = ["TARGETS"]

TARGETS: dict[str, Target] = {**WIRE, **DOCUMENTS, **PAGES}
