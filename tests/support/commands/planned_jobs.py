"""The job file of the tests of `farflung plan`, and a call of the command line in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.cli.main import main

JOB = """
name = "tiny"
micro_batch_sizes = [2, 2, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 8, layers = 2, width = 8, heads = 2 }
[data]
kind = "text"
path = "x"
sequence = 8
"""


def run(arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as over:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(over.value.code or 0), out, err
