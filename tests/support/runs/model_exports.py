"""Runs of models of other libraries: trained on two workers as a plain loop trains them, and exported as the library's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farflung.cli.main import main
from farflung.engines.base import Array
from farflung.job import JobSpec
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of

__all__ = ["arrays_of", "exported", "trained"]


def arrays_of(model: Any, prefix: str = "") -> dict[str, Array]:
    """Parameters and buffers of a PyTorch module, with ``prefix`` before their names."""
    return {prefix + name: value.numpy() for name, value in model.state_dict().items()}


def trained(job: JobSpec, home: Path, first: Mapping[str, Array] | None = None) -> tuple[Finished, Any]:
    """Train ``job`` from the states ``first`` on two workers. Returns the run, and the module of a plain loop with equal bits."""
    with Loopback(home, 2) as cluster:
        finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    assert len(set(finished.devices)) == 2
    module, truth = plainly(job, home, first)
    assert same(truth.states, states_of(finished)) == []
    return finished, module


def exported(finished: Finished, out: Path, option: str = "--pretrained") -> Path:
    """Export the newest checkpoint to the folder ``out``."""
    with pytest.raises(SystemExit) as over:
        main(["checkpoint", "export", str(finished.folder), str(out), option])
    assert not over.value.code
    return out
