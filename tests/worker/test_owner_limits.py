"""Which name a worker without ``--name`` has, and so which limits apply to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.worker.owner_limits import OwnerLimitsFile

#: Takes a name like a worker that was started without ``--name``, prints it, and runs until its input ends.
WORKER = """
import sys
from pathlib import Path
from farflung.worker.owner_limits import OwnerLimitsFile
print(OwnerLimitsFile.claim(Path(sys.argv[1]), "attic-worker").name, flush=True)
sys.stdin.read()
"""


@contextmanager
def worker(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), "farflung"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
        process.kill()


def test_a_worker_that_was_killed_has_its_name_and_its_limits_again(tmp_path: Path) -> None:
    with worker(tmp_path) as (name, process):
        assert name == "attic-worker"
        OwnerLimitsFile(tmp_path, name).change(paused=True, memory=4e9)
        process.kill()
        process.wait()
    again = OwnerLimitsFile.claim(tmp_path, "attic-worker")
    assert again.name == name
    stored = again.begin({})
    assert (stored.paused, stored.memory) == (True, 4e9)


def test_workers_that_run_have_names_of_their_own(tmp_path: Path) -> None:
    with ExitStack() as ending:
        running = [ending.enter_context(worker(tmp_path)) for _ in range(3)]
        assert [name for name, _ in running] == ["attic-worker", "attic-worker-2", "attic-worker-3"]
        with pytest.raises(
            InputError, match=rf"'attic-worker-2' runs here already \(process {running[1][1].pid}\); choose another"
        ):
            OwnerLimitsFile(tmp_path, "attic-worker-2").begin({})
        running[1][1].kill()
        running[1][1].wait()
        assert OwnerLimitsFile.claim(tmp_path, "attic-worker").name == "attic-worker-2"
