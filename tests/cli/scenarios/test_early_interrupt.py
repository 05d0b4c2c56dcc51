"""Ctrl-C while the command line is still being imported."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import builtins, sys
before = builtins.__import__

def importing(name, *args, **kwargs):
    if name == "farflung.cli.main":
        raise KeyboardInterrupt
    return before(name, *args, **kwargs)

builtins.__import__ = importing
sys.argv = ["farflung", "status"]
from farflung.__main__ import main
main()
"""


def test_an_interrupt_during_imports_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


STUCK = """
import sys, threading
import farflung.cli.main

def interrupted():
    threading.Thread(target=threading.Event().wait, name="stuck").start()
    print("stopped")
    sys.exit(130)

farflung.cli.main.main = interrupted
from farflung.__main__ import main
main()
"""


def test_an_interrupted_command_waits_for_no_thread() -> None:
    """A library's thread may be left in the middle of a call, and the interpreter would wait for it at its end."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped\n", "")
