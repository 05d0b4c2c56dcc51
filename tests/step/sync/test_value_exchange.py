"""Exchanges of values one by one: what does not fit is laid to whoever sent it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from farflung.errors import WireError
from farflung.step.sync.stage_replica import StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync.commands import Exchange
from tests.support.steps.executor_threads import EVERY_STEP, other, run_threads
from tests.support.steps.strategy_cases import case_of, straight


@pytest.mark.parametrize("left", [1, 2])
def test_values_that_do_not_fit_are_laid_to_their_sender(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found where they are used, on the compute thread of an honest worker. One array may hold all parameters."""
    begin = ValueExchange.begin

    def short(values: ValueExchange, replica: StageReplica, command: Exchange, names: Sequence[str]) -> None:
        begin(values, replica, command, names[:left] if replica.world.rank in command.sources == (1,) else names)

    monkeypatch.setattr(ValueExchange, "begin", short)
    case = other(case_of("fedbuff", {"sync_every": 1}, grid=False, steps=2), make=straight)
    with pytest.raises(WireError, match=r"^c") as found:
        run_threads(case)
    assert found.value.blames == "c"


@pytest.mark.parametrize("left", [1, 2])
def test_a_checkpoint_lays_values_that_do_not_fit_to_their_sender(
    left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the first step, a contribution is under way."""
    begin = ValueExchange.begin

    def short(values: ValueExchange, replica: StageReplica, command: Exchange, names: Sequence[str]) -> None:
        begin(values, replica, command, names[:left] if replica.world.rank in command.sources == (1,) else names)

    monkeypatch.setattr(ValueExchange, "begin", short)
    case = case_of("fedbuff", {"sync_every": 2, "overlap": 1}, grid=False, steps=3, checkpoint=EVERY_STEP)
    with pytest.raises(WireError, match=r"^c") as found:
        run_threads(other(case, make=straight, root=tmp_path))
    assert found.value.blames == "c"
