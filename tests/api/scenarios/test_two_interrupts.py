"""Two real Ctrl-C signals during ``train`` in a process of its own: the second one ends the training in the middle of a step."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import IO

import pytest

#: The batch of step 3 waits for a line, so that both signals arrive during this step. Each signal prints a line.
SCRIPT = """
import signal, sys, torch
from farflung import train

class Model(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x).pow(2).mean()

def batch(step, micro_batch):
    if step == 3:
        print("step 3 waits", flush=True)
        sys.stdin.readline()
    return (torch.ones(4, 8),)

def interrupted(number, frame):
    print("Ctrl-C", flush=True)
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
train(Model(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)), batch, steps=10**6, workers=2)
"""
ENDS = "training ends after the current step; press Ctrl-C again to end it at once"


def wait_for(line: str, stream: IO[str]) -> None:
    """Read ``stream`` up to ``line``."""
    assert line in (found.strip() for found in stream), f"the process ended before it printed {line!r}"


@pytest.mark.timeout(300)
def test_the_second_interrupt_ends_the_training_within_a_step() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            wait_for("step 3 waits", process.stdout)
            process.send_signal(signal.SIGINT)
            wait_for("Ctrl-C", process.stdout)
            wait_for(ENDS, process.stderr)
            process.send_signal(signal.SIGINT)
            wait_for("Ctrl-C", process.stdout)
            _, err = process.communicate("go\n", timeout=120)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    last = err.splitlines()[-1]
    assert last.startswith("KeyboardInterrupt: training was interrupted after ")
    assert last.endswith(" of 1000000 steps; its workers have ended")
    assert "attribute 'result'" not in err, "the step under way has no result"
