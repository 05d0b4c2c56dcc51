"""Jobs of a user's own ``model.py`` on two small arrays, and the processes of a broker and its workers for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.commands.command_processes import Program

__all__ = ["broker_and_workers", "submit", "write_model"]

_EXAMPLES = """

def example_inputs(batch):
    return torch.zeros(batch, 4), torch.zeros(batch, 4)
"""
_JOB = """
name = "{name}"
steps = 5
micro_batch_sizes = [4]
recoveries = 1000
[model]
recipe = "model.py:make"
args = {{ {args} }}
[data]
kind = "array"
path = "data"
fields = {{ x = "inputs" }}
[checkpoint]
at_end = false
"""


def write_model(place: Path, model: str) -> None:
    """Save ``model``, which defines ``make`` for a module of ``x`` and ``labels``, and its data."""
    (place / "model.py").write_text(model + _EXAMPLES)
    (place / "data").mkdir()
    for name in ("inputs", "labels"):
        np.save(place / "data" / f"{name}.npy", np.ones((40, 4), np.float32))


def submit(place: Path, name: str, args: str) -> Program:
    """Submit a job of five steps; ``args`` (TOML) are those of ``make``."""
    (place / f"{name}.toml").write_text(_JOB.format(name=name, args=args))
    return Program(place, name, "submit", f"{name}.toml", "--home", "h")


@contextmanager
def broker_and_workers(place: Path, names: str, memory: str) -> Iterator[tuple[str, list[Program]]]:
    """A ticket of the broker, and a worker for each letter of ``names``; all are well at the end."""
    broker = Program(place, "broker", "broker", "--no-web", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    words = ("--listen", "127.0.0.1:0", "--memory", memory)
    workers = [Program(place, name, "join", ticket, "--name", name, *words) for name in names]
    for worker in workers:
        worker.until("joined the broker")
    try:
        yield ticket, workers
        for program in (*workers, broker):
            assert program.process.poll() is None, program.text
    finally:
        for program in (*workers, broker):
            program.process.terminate()
            program.ends()
