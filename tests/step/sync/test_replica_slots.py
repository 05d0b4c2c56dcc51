"""A run under a strategy goes on exactly from a checkpoint, also in the middle of a period and with exchanges under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.step.sync.replica_slots import RetainedReplica, read_slots, wanted_by, write_slots
from farflung.sync import STRATEGIES, Sent, get_strategy
from tests.support.steps.executor_threads import assert_goes_on, other, run_threads
from tests.support.steps.strategy_cases import ELSEWHERE, SETTINGS, SGD, case_of

#: Periods of three steps, and checkpoints after two: always in the middle.
PERIODS = {
    name: given_ | {"merge_every" if name == "branch_train_merge" else "sync_every": 3} for name, given_ in SETTINGS.items()
}
SAVES = {"every": 4, "at_end": False, "keep": 9}
ADAM = {"name": "adamw", "lr": 1e-2}
NAMES = sorted(set(STRATEGIES) - ELSEWHERE)
SCALARS = {name for name in NAMES if get_strategy(name).traits.sent is Sent.SCALARS}
PAIRS = [(name, codec) for name in NAMES for codec in ("identity", "int8") if codec == "identity" or name not in SCALARS]


@pytest.mark.parametrize(("strategy", "codec"), PAIRS)
def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(strategy: str, codec: str, tmp_path: Path) -> None:
    chosen = PERIODS.get(strategy, {}) | {"codec": codec}
    optimizer = SGD if get_strategy(strategy).traits.plain_sgd else ADAM
    case = case_of(strategy, chosen, grid=False, steps=8, optimizer=optimizer, checkpoint=SAVES)
    assert_goes_on(case, 4, tmp_path)


MEMORIES = ["error_feedback", "dgc:momentum=0.5", "difference", "econtrol"]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("strategy", ["ssgd", "delayed"])
def test_what_was_dropped_is_part_of_a_checkpoint(strategy: str, memory: str, tmp_path: Path) -> None:
    settings = {"codec": "topk:ratio=4,values=int8", "memory": memory}
    case = case_of(strategy, settings, grid=False, steps=8, optimizer={"name": "sgd", "lr": 0.01}, checkpoint=SAVES)
    assert_goes_on(case, 4, tmp_path)


def test_pipelines_keep_what_each_of_their_stages_has(tmp_path: Path) -> None:
    case = case_of("streaming_diloco", PERIODS["streaming_diloco"], steps=8, optimizer=ADAM, checkpoint=SAVES)
    assert_goes_on(case, 4, tmp_path)


tags = st.sampled_from(["3", "7/0", "9/0-1"])
numbers = st.integers(0, 9).map(lambda number: np.full(3, number, np.float32))
arrays = st.dictionaries(st.sampled_from(["w", "a.b", "c"]), numbers, min_size=1)


@given(
    registers=st.dictionaries(st.sampled_from(["anchor", "gap"]), arrays),
    means=st.dictionaries(tags, arrays),
    values=st.dictionaries(tags, st.dictionaries(st.integers(0, 3), arrays, min_size=1)),
    place=st.tuples(st.integers(0, 99), st.integers(2, 9), st.integers(0, 8)),
)
@settings(deadline=None, max_examples=50)
def test_slots_are_read_back(registers: Any, means: Any, values: Any, place: tuple[int, int, int]) -> None:
    origin, members, rank = place
    kept = RetainedReplica(origin=origin, registers=registers, means=means, values=values, optimizer={"step/w": np.zeros(1)})
    slots = write_slots(kept, members, rank, "w")
    assert {key.partition("/")[2] for key in slots} <= {"w", "a.b", "c"}, "the parameter is what follows the first stroke"
    found = read_slots(slots, members, rank)
    assert found is not None
    assert found.origin == origin
    again = write_slots(found, members, rank, "w")
    assert again.keys() == slots.keys()
    assert all(again[key] is slots[key] for key in slots if ".mark." not in key)
    for tag, held in values.items():
        assert {member: list(sent) for member, sent in found.values[tag].items()} == {m: list(sent) for m, sent in held.items()}
    assert read_slots(slots, members + 1, rank) is None


def test_a_replica_that_keeps_nothing_still_counts_from_the_same_step() -> None:
    found = read_slots(write_slots(RetainedReplica(origin=7), 2, 0, "w"), 2, 0)
    assert found is not None
    assert found.origin == 7


def test_a_replica_fetches_what_its_own_one_kept_and_nothing_of_the_others(tmp_path: Path) -> None:
    case = case_of("local_sgd", PERIODS["local_sgd"], grid=False, steps=4, optimizer=ADAM)
    ran = run_threads(other(case, root=tmp_path))
    assert ran.store is not None
    names = list(ran.held["a"])
    first, second, stranger = (
        {slot for slot, _ in ran.store.checkpoint_states(names, optimizer=True, wanted=wanted_by(ran.plan, device))}
        for device in ("a", "c", "somebody")
    )
    assert first < stranger
    assert second < stranger
    assert {slot.split(".")[3] for slot in first if slot.startswith("sync.")} == {"0"}
    assert {slot.split(".")[3] for slot in second if slot.startswith("sync.")} == {"1"}
    assert {slot for slot in stranger if not slot.startswith("sync.")} <= first & second
