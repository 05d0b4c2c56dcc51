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
