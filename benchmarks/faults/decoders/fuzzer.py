"""The process that ``fuzz-decoders`` starts. It imports all decoders once, and forks for each turn of libFuzzer over one target.

Each line of the standard input is a turn: a JSON list of the target's name, the file for what libFuzzer prints, and libFuzzer's
arguments. The answer is a line with the status of the forked process, which a fault ends, and its seconds of the processor. Each
input has ``_MEMORY`` bytes of address space beyond what the process has, and ``_SECONDS`` of the processor.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=[
        *("farflung.checkpoint", "farflung.cluster", "farflung.codecs", "farflung.errors", "farflung.graph", "farflung.job"),
        *("farflung.launchers.host_requests", "farflung.messages", "farflung.optim", "farflung.plan.document"),
        *("farflung.engines.isolated.arena", "farflung.engines.isolated.control", "farflung.plan.model", "farflung.security"),
        *("farflung.serving.app", "farflung.serving.openai", "farflung.telemetry", "farflung.transports.tcp.connection"),
        *("farflung.transports.tcp.halves", "farflung.transports.tcp.relay_calls", "farflung.transports.tcp.state"),
        *("farflung.units", "farflung.web.pages.what_if_scenario", "farflung.web.serving", "farflung.wire", "tomllib"),
    ]
):
    import numpy as np

    from benchmarks.faults.decoders.catalog import TARGETS
    from benchmarks.faults.decoders.mutation import mutate
    from benchmarks.faults.decoders.target import Target

__all__ = ["main"]

_MEMORY, _SECONDS = 128 << 20, 10.0


def main() -> None:
    """Fork for each line of the standard input until it ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        name, log, *words = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(log, "wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            _fuzz(TARGETS[name], words)
        _, status, usage = os.wait4(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}\n")
        sys.stdout.flush()


def _fuzz(target: Target, words: Sequence[str]) -> None:
    """Fuzz until libFuzzer's limits are reached; an unexpected exception or a signal ends the process."""
    warnings.simplefilter("error", RuntimeWarning)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    statm, page = Path("/proc/self/statm"), resource.getpagesize()

    def one(data: bytes) -> None:
        most = int(statm.read_bytes().split()[0]) * page + _MEMORY
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        try:
            target.run(data)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def change(data: bytes, most: int, seed: int) -> bytes:
        return mutate(target.form, data, np.random.default_rng(seed), lambda given: atheris.Mutate(given, most))[:most]

    atheris.Setup(["fuzzer", *words], one, custom_mutator=change)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
