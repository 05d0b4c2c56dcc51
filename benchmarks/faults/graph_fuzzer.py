"""The process that ``fuzz-graphs`` starts: libFuzzer, through atheris, over ``graph_inputs``; a crash ends only this process.

Before each input the operator's name and the input go into a file, where the parent finds them after a crash. An input that takes
too much of the processor ends the process by SIGPROF: libFuzzer's own limit is time on the wall, which a busy machine exceeds.
Arguments: that file, the operators to leave out (separated by commas), the seconds, then what libFuzzer takes.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

import atheris

with atheris.instrument_imports(include=["farflung.graph", "farflung.engines"]):
    from benchmarks.faults.graph_inputs import draw_graph, draw_operator, train_once
    from farflung.errors import FarflungError

__all__ = ["main"]

_NAME_LENGTH, _INPUT_LENGTH = 80, 8192


def main() -> None:
    """Fuzz until libFuzzer's limits are reached; an unexpected exception or a signal ends the process."""
    import torch

    torch.set_num_threads(1)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    warnings.simplefilter("ignore")
    present = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
    without, seconds = frozenset(sys.argv[2].split(",")), float(sys.argv[3])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def one(data: bytes) -> None:
        source: Any = atheris.FuzzedDataProvider(data)
        operator = draw_operator(source)
        if operator in without:
            return
        # before the drawing, which calls the operator as well
        os.pwrite(present, operator.encode().ljust(_NAME_LENGTH) + data.hex().encode().ljust(_INPUT_LENGTH)[:_INPUT_LENGTH], 0)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            drawn = draw_graph(source, operator)
        except Exception:  # noqa: BLE001 - the meta device can raise anything; what it refuses has no graph
            return
        try:
            train_once(drawn, len(data))
        except (FarflungError, torch.OutOfMemoryError):
            return

    atheris.Setup([sys.argv[0], *sys.argv[4:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
