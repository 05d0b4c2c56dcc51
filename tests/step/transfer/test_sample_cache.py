"""Links that remember samples: both ends hold the same, checkpoints hold it, and what can't work is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from farflung.codecs import decode_payload, get_codec, keyed
from farflung.codecs.samples import SampleCoder, SampleTable, sample_ids
from farflung.engines.base import Array
from farflung.errors import CheckpointError, InputError, WireError
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.data import UseKey, Value, ValueKey
from farflung.messages.schema import UNSET
from farflung.plan.link_memory import check_samples, limit_of
from farflung.plan.model import Plan, Replica
from farflung.step.run_setup import Phase, RunSetup
from farflung.step.transfer.sample_cache import SampleCache
from farflung.step.transfer.value_transfer import ValueTransfer
from tests.support.steps.executor_threads import (
    Case,
    differing,
    hand_plan,
    job_of,
    newest,
    other,
    random_batches,
    run_threads,
)
from tests.support.steps.sample_cache_cases import BITS, BOTH, CODEC, LIMIT, SIZES, case_of, every_link


@dataclass
class Crossed:
    """A value as it was sent and as it arrived."""

    step: int
    micro_batch: int
    gradient: bool
    value: str
    sent: Array
    arrived: Array | None = None


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Any, ...], Crossed]:
    """All values of the runs of a test, by their keys."""
    found: dict[tuple[Any, ...], Crossed] = {}
    send, arrays = ValueTransfer.send, ValueTransfer._planned

    def sends(self: ValueTransfer, phase: Phase, step: int, micro: int, edge: Any, array: Array, *, gradient: bool) -> None:
        key = self.key(phase, step, micro, edge, gradient=gradient)
        found[key] = Crossed(step, micro, gradient, str(edge.value), np.array(array))
        send(self, phase, step, micro, edge, array, gradient=gradient)

    def arrives(self: ValueTransfer, peer: str, key: ValueKey, value: Value) -> Array:
        array = arrays(self, peer, key, value)
        found[key].arrived = np.array(array)
        return array

    monkeypatch.setattr(ValueTransfer, "send", sends)
    monkeypatch.setattr(ValueTransfer, "_planned", arrives)
    return found


def test_the_receiver_has_what_the_specification_says(crossed: dict[tuple[Any, ...], Crossed]) -> None:
    """Values as ``SampleCoder``'s, one table for each; gradients as what is sent with the sample's error added."""
    case = case_of()
    run_threads(case)
    values = [one for one in crossed.values() if one.arrived is not None]
    assert {one.gradient for one in values} == {False, True}
    tables: dict[tuple[str, bool], SampleTable] = {}
    codec = get_codec("quantized", **dict(BITS))
    for one in sorted(values, key=lambda one: (one.step, one.micro_batch)):
        table = tables.setdefault((one.value, one.gradient), SampleTable(limit=1 << 30))
        own = keyed(codec, case.job.seed, one.step, one.micro_batch, one.value, int(one.gradient))
        inputs = case.batches(one.step, one.micro_batch)[0].numpy()
        ids = sample_ids([inputs], len(inputs))
        assert one.arrived is not None
        if not one.gradient:
            SampleCoder(codec=own).encode(one.sent, ids, table)
            expected = table.bases(ids, one.sent[0].size).reshape(one.sent.shape)
        else:
            wanted = one.sent + table.bases(ids, one.sent[0].size).reshape(one.sent.shape)
            expected = decode_payload(own.encode(wanted))
            table.put(ids, (wanted - expected).reshape(len(ids), -1))
        assert one.arrived.tobytes() == expected.tobytes(), (one.step, one.micro_batch, one.value, one.gradient)


def test_a_resumed_run_goes_on_as_if_it_had_never_ended(tmp_path: Path) -> None:
    """Bit for bit, because checkpoints hold what the links remember; without that it would differ."""
    first = case_of(root=tmp_path / "one", devices=("a", "b", "c"), links=every_link(3, *BOTH))
    whole = run_threads(first)
    assert whole.store is not None
    assert any(name.startswith("samples.difference") for name in newest(whole).manifest.optimizer)
    resumed = other(first, root=tmp_path / "two", resume=whole.store.checkpoints.path(3))
    assert differing(whole.states, run_threads(resumed).states) == []
    forgetful = other(resumed, root=tmp_path / "three", links=every_link(3, CODEC, CODEC))
    assert differing(whole.states, run_threads(forgetful).states) != []


def test_another_cut_begins_anew_at_both_ends(tmp_path: Path) -> None:
    first = case_of(root=tmp_path / "one")
    whole = run_threads(first)
    assert whole.store is not None
    for seed in (0, 1):
        moved = other(first, root=tmp_path / f"two-{seed}", resume=whole.store.checkpoints.path(3), cut_seed=seed)
        assert len(run_threads(moved).losses) == 3


def test_memory_lowers_the_error_when_samples_come_again(crossed: dict[tuple[Any, ...], Crossed]) -> None:
    """With a small rate values change little, so differences are small."""
    small = {"name": "sgd", "lr": 1e-4}
    job = job_of(steps=6, micro_batch_sizes=SIZES, optimizer=small)
    plain = random_batches(SIZES)
    run_threads(case_of(job=job, batch=lambda step, index: plain(0, index)))

    def error(steps: range) -> float:
        own = [one for one in crossed.values() if one.step in steps and not one.gradient and one.arrived is not None]
        return float(np.mean([np.linalg.norm(one.sent - one.arrived) / np.linalg.norm(one.sent) for one in own]))

    assert error(range(5, 6)) < 0.1 * error(range(1))


def plan_of(case: Case) -> tuple[Plan, RunSetup]:
    graphs = case.graphs()
    plan = hand_plan(case, graphs[max(graphs)])
    return plan, RunSetup(run="run", device="a", job=case.job, plan=plan, graphs=graphs)


def test_samples_must_come_again_and_fit() -> None:
    _, setup = plan_of(case_of())
    check_samples(setup.job, setup.routes, 53)
    with pytest.raises(InputError, match="6 steps of 9 samples take 54, and the data have 54; set it to 'none', or train longer"):
        check_samples(setup.job, setup.routes, 54)
    check_samples(setup.job, {}, 54)
    tight = setup.job.model_copy(update={"codec": setup.job.codec.model_copy(update={"memory_bytes": 1000.0})})
    with pytest.raises(
        InputError, match=r"53 samples of .* from . to . take 1.\d+ kB, and codec.memory_bytes = 1000 leaves .* to 'none'"
    ):
        check_samples(tight, setup.routes, 53)


def test_all_tables_of_a_device_fit_its_share() -> None:
    _, setup = plan_of(case_of(devices=("a", "b", "a"), links=every_link(3, *BOTH)))
    limit = limit_of(1e6, setup.routes)
    for device in ("a", "b"):
        taken = sum(2 * (w.sender == device) + (w.receiver == device and w.memory == "difference") for w in setup.routes)
        assert 0 < taken * limit <= 1e6


def test_replicas_have_a_table_for_each_pair() -> None:
    plan, setup = plan_of(case_of())
    shared = replace(plan.stages[1], replicas=(Replica(device="b", first=0, end=2), Replica(device="c", first=2, end=3)))
    several = replace(setup, plan=replace(plan, stages=(plan.stages[0], shared)))
    assert {(route.sender, route.receiver) for route in several.routes} == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}


MAKE = partial(Value, run="r", key=UseKey(step=0, stage=0, state="w", op="op"))


def ends(case: Case) -> tuple[SampleCache, SampleCache, Any]:
    """Sender, receiver, and a route with differences between them."""
    _, setup = plan_of(case)
    route = next(route for route in setup.routes if route.memory == "difference" and route.sender == "a")
    return SampleCache(setup, lambda: None), SampleCache(replace(setup, device="b"), lambda: None), route


def test_ends_that_disagree_are_refused() -> None:
    sender, receiver, route = ends(case_of())
    array, numbers = np.ones((4, 8), np.float32), np.arange(4, dtype=np.uint64)
    codec = get_codec("quantized", **dict(BITS))
    values = [sender.announce(route, MAKE, array, codec, numbers)() for _ in range(2)]
    assert sender.settled
    with pytest.raises(WireError, match="remember differently: message 1 came after 0"):
        receiver.receive(route, (0, 0), values[1], LIMIT)
    arrived = receiver.receive(route, (0, 0), values[0], LIMIT)[1]
    assert arrived is not None
    assert arrived.shape == (4, 8)
    with pytest.raises(WireError, match="the plan sends none there"):
        receiver.receive(replace(route, memory=""), (0, 0), values[1], LIMIT)
    torn = replace_fields(values[1], sections=values[1].sections[:-1])
    with pytest.raises(WireError, match="came without their numbers"):
        receiver.receive(route, (0, 0), torn, LIMIT)
    odd = replace_fields(values[1], array=ArrayHeader(dtype="float32", shape=(5, 3), strides=None))
    with pytest.raises(WireError, match="are not those of 4 samples"):
        receiver.receive(route, (0, 0), odd, LIMIT)
    for strides in ((1 << 40, 1), (8, 1 << 30)):
        wide = replace_fields(values[1], array=ArrayHeader(dtype="float32", shape=(4, 8), strides=strides))
        with pytest.raises(WireError, match="oversized difference for"):
            receiver.receive(route, (0, 0), wide, LIMIT)
    assert receiver.receive(route, (0, 0), values[1], LIMIT)[1] is not None, "what was refused has changed no table"


def test_a_torn_table_of_a_checkpoint_is_refused() -> None:
    sender, receiver, route = ends(case_of())
    sender.announce(route, MAKE, np.ones((4, 8), np.float32), get_codec("int4"), np.arange(4, dtype=np.uint64))()
    kept = sender.kept()
    receiver.load(kept)
    assert receiver.kept() == {}, "the sender's share"
    torn = {key: array[:-1] if ".rows." in key else array for key, array in kept.items()}
    with pytest.raises(CheckpointError, match="is torn: use an older checkpoint"):
        ends(case_of())[1].load(torn)


def test_values_of_another_first_dim_travel_by_their_codec_alone() -> None:
    sender, receiver, route = ends(case_of())
    value = sender.announce(route, MAKE, np.ones((8, 4), np.float32), get_codec("int4"), np.arange(4, dtype=np.uint64))()
    assert value.payload is not UNSET
    assert value.samples == 4
    left, array = receiver.receive(route, (2, 1), value, LIMIT)
    assert array is None
    assert len(left) == len(value.sections) - 1
    assert receiver.ids(route.target, 2, 1) is not None
    receiver.begin(3)
    assert receiver.ids(route.target, 2, 1) is None
