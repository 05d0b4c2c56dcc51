"""Strategies against each other and against loops written out by hand."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync import STRATEGIES, LayerInfo, World, get_strategy, strategies
from farflung.sync.commands import Aggregate, Exchange, Mean, Probe, Replay, Update
from farflung.sync.strategies.gossip import pairs_of
from farflung.testing.replicas import Task
from farflung.units import Bytes, Seconds
from tests.support.models.small_nets import flat, gradient, group, start, task, world

MOMENTUM = task(momentum=0.9, nesterov=True)
ADAMW = task(lr=0.01, name="adamw")


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def quick(name: str) -> dict[str, Any]:
    """Settings for three layers and few steps."""
    if name in {"diloco", "streaming_diloco", "co2", "local_sgd"}:
        return {"sync_every": 4}
    if name in {"partial", "dreamddp", "contiguous", "free_sets"}:
        return {"sync_every": 3}
    if name in {"fedbuff", "fedfix", "fedcompass"}:
        return {"sync_every": 7}
    if name == "branch_train_merge":
        return {"branch_at": 20, "merge_every": 10}
    if name == "dimat":
        return {"sync_every": 4, "units": "0:1 1:0; 1:1 2:0"}
    if name == "fedamd":
        return {"sync_every": 4}
    if name == "fedkseed":
        return {"sync_every": 4, "candidates": 64}
    return {"sync_every": 4, "sample": 3, "aggregators": 2} if name == "modest" else {}


def small(name: str) -> Task:
    """The task, at a rate that the strategy can take."""
    return task(lr=0.02) if name in {"seed_and_scalar", "fedkseed"} else task()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_learns_and_repeats_itself(name: str) -> None:
    settings = quick(name)
    first, second = group(name, on=small(name), **settings), group(name, on=small(name), **settings)
    losses = first.run(60)
    assert second.run(60) == losses
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:5])
    assert np.array_equal(flat(first, 1), flat(second, 1))


@pytest.mark.parametrize("name", STRATEGIES)
def test_programs_are_pure_and_end_what_they_begin(name: str) -> None:
    strategy, here = get_strategy(name, **quick(name)), world()
    strategy.init(here)
    begun: set[str] = set()
    ended: set[str] = set()
    for step in range(120):
        program = strategy.step(step, here)
        assert program == strategy.step(step, here)
        for command in program.commands:
            if isinstance(command, Exchange | Probe) and here.rank in command.group:
                assert command.tag not in begun, "one name for one exchange"
                begun.add(command.tag)
            if isinstance(command, Mean | Aggregate | Replay):
                ended.add(command.tag)
        updated = [layer for command in program.commands if isinstance(command, Update) for layer in command.layers]
        if not (name == "delayed" and step == 0) and (name != "fedamd" or updated):  # an anchor updates nothing
            assert sorted(updated) == [0, 1, 2], "each layer is updated once"
    assert ended <= begun
    assert len(begun - ended) <= 2, "only the last exchanges may be under way"
    assert len(begun) >= 2


def by_hand(steps: int, members: int = 3, lr: float = 0.1) -> Any:
    """S-SGD written out."""
    parameters = start()
    for step in range(steps):
        grads = [gradient(parameters, step, member)[1] for member in range(members)]
        for layer in range(len(parameters)):
            parameters[layer] = parameters[layer] - lr * np.mean([grad[layer] for grad in grads], axis=0)
    return np.concatenate([layer.reshape(-1) for layer in parameters])


def test_ssgd_is_a_plain_loop() -> None:
    found = group("ssgd")
    found.run(5)
    close(flat(found), by_hand(5))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("local_sgd", {"sync_every": 1}),
        ("partial", {"sync_every": 1}),
        ("dreamddp", {"sync_every": 1}),
        ("contiguous", {"sync_every": 1}),
        ("free_sets", {"sync_every": 1}),
        ("diloco", {"sync_every": 1, "outer_lr": 1.0, "outer_momentum": 0.0}),
        (
            "streaming_diloco",
            {"sync_every": 1, "fragments": 1, "overlap": 0, "outer_lr": 1.0, "outer_momentum": 0.0, "codec": "identity"},
        ),
    ],
)
def test_a_period_of_one_is_ssgd(name: str, settings: dict[str, Any]) -> None:
    found = group(name, **settings)
    found.run(20)
    close(flat(found), by_hand(20))


@pytest.mark.parametrize(("name", "settings"), [("wfbp", {}), ("asc_wfbp", {}), ("asc_wfbp", {"fitted": True})])
def test_overlapped_gradients_give_the_bits_of_ssgd(name: str, settings: dict[str, Any]) -> None:
    for on in (task(), MOMENTUM, ADAMW):
        found, plain = group(name, on=on, **settings), group("ssgd", on=on)
        found.run(8)
        plain.run(8)
        assert np.array_equal(flat(found), flat(plain))


@pytest.mark.parametrize("on", [task(), MOMENTUM, ADAMW])
def test_all_layers_in_one_set_is_local_sgd(on: Any) -> None:
    partial = group("dreamddp", on=on, sync_every=4, sets=((), (), (), (0, 1, 2)))
    full = group("local_sgd", on=on, sync_every=4)
    partial.run(10)
    full.run(10)
    for rank in range(3):
        assert np.array_equal(flat(partial, rank), flat(full, rank))
    assert full.spread() > 1e-6


@pytest.mark.parametrize("name", ["partial", "dreamddp", "contiguous", "free_sets"])
def test_partial_synchronization_averages_its_set_and_nothing_else(name: str) -> None:
    found = group(name, sync_every=3)
    for step in range(6):
        found.run(1)
        chosen = found.strategy.layers_of(step, world())  # type: ignore[attr-defined]
        for layer in range(3):
            first, second = (found.replicas[rank].parameters[layer] for rank in (0, 1))
            assert np.array_equal(first, second) == (layer in chosen)


def test_partial_synchronization_needs_no_copy_and_overlaps() -> None:
    strategy, here = get_strategy("free_sets", sync_every=2, sets=((2,), (0, 1))), world()
    assert strategy.traits.registers == ()
    program = strategy.step(1, here)
    assert list(program.ready) == [1, 0]
    assert [type(command) for command in program.ready[0]] == [Update, Exchange]
    assert program.exchanges[0].source == "parameters"
    assert [type(command) for command in program.after] == [Update, Mean, Mean]


def test_bubble_filling_exchanges_more_and_tied_layers_go_together() -> None:
    here = world()
    plain, filled = get_strategy("free_sets", sync_every=3, fill=False), get_strategy("free_sets", sync_every=3, fill=True)
    counts = [sum(len(s.step(step, here).exchanges) for step in range(3)) for s in (plain, filled)]
    assert counts[0] == 3 < counts[1]
    tied = get_strategy("free_sets", sync_every=2, tied=((0, 2),))
    sent = [command for step in range(2) for command in tied.step(step, here).exchanges]
    assert sorted(command.layers for command in sent) == [(1,), (2, 0)]
    assert all(
        0 in program.ready
        for program in [tied.step(s, here) for s in range(2)]
        if any(e.layers == (2, 0) for e in program.exchanges)
    )


def test_buckets_merge_small_neighbours_and_share_lanes() -> None:
    strategy = get_strategy("asc_wfbp", merge_bytes=4000, simultaneous=2)
    sent = strategy.step(0, world(layers=4)).exchanges
    assert [(command.layers, command.lane) for command in sent] == [((3,), 0), ((2, 1), 1), ((0,), 0)]


def test_delayed_update_is_one_step_stale() -> None:
    found = group("delayed")
    found.run(6)
    parameters, before = start(), None
    for step in range(6):
        grads = [gradient(parameters, step, member)[1] for member in range(3)]
        mean = [np.mean([grad[layer] for grad in grads], axis=0) for layer in range(3)]
        if before is not None:
            parameters = [p - 0.1 * g for p, g in zip(parameters, before, strict=True)]
        before = mean
    close(flat(found), np.concatenate([layer.reshape(-1) for layer in parameters]))


def rounds_by_hand(rounds: int, sync_every: int, outer: Any) -> Any:
    """``outer(anchor, delta, round)`` gives the next anchor, from which all replicas train ``sync_every`` steps."""
    anchor = np.concatenate([layer.reshape(-1) for layer in start()])
    shapes = [layer.shape for layer in start()]
    for number in range(rounds):
        ends = []
        for member in range(3):
            w = unflat(anchor, shapes)
            for step in range(number * sync_every, (number + 1) * sync_every):
                w = [p - 0.1 * g for p, g in zip(w, gradient(w, step, member)[1], strict=True)]
            ends.append(np.concatenate([layer.reshape(-1) for layer in w]))
        anchor = outer(anchor, anchor - np.mean(ends, axis=0), number)
    return anchor


def unflat(vector: Any, shapes: Any) -> list[Any]:
    found, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        found.append(vector[at : at + size].reshape(shape))
        at += size
    return found


@pytest.mark.parametrize("nesterov", [True, False])
def test_dilocos_outer_step_is_torchs_sgd(nesterov: bool) -> None:
    import torch

    weight = torch.zeros(sum(layer.size for layer in start()), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9, nesterov=nesterov)

    def outer(anchor: Any, delta: Any, number: int) -> Any:
        with torch.no_grad():
            weight.copy_(torch.from_numpy(anchor))
        weight.grad = torch.from_numpy(delta)
        optimizer.step()
        return weight.detach().numpy().copy()

    found = group("diloco", sync_every=3, outer_lr=0.5, nesterov=nesterov)
    found.run(12)
    close(flat(found), rounds_by_hand(4, 3, outer))
    assert np.array_equal(flat(found), flat(found, 2))


def test_co2_applies_a_round_late() -> None:
    found = group("co2", sync_every=3, outer_lr=0.8, outer_momentum=0.3, penalty=False)
    found.run(12)
    state: dict[str, Any] = {"late": None, "momentum": 0.0}

    def outer(anchor: Any, delta: Any, number: int) -> Any:
        late, state["late"] = state["late"], delta
        if late is None:
            return anchor
        state["momentum"] = 0.3 * state["momentum"] + late
        return anchor - 0.8 * state["momentum"]

    close(flat(found), rounds_by_hand(4, 3, outer))


def test_co2s_penalty_and_clipping_hold_the_momentum() -> None:
    plain, damped, clipped = (
        group("co2", sync_every=2, penalty=False),
        group("co2", sync_every=2),
        group("co2", sync_every=2, clip=0.01),
    )
    norms = []
    for found in (plain, damped, clipped):
        found.run(10)
        norms.append(float(np.linalg.norm(flat(found, register="outer_momentum"))))
    assert norms[1] < 0.8 * norms[0]
    assert norms[2] <= 0.01 * (1 + 1e-9)


def test_streaming_fragments_leave_in_turn_and_arrive_later() -> None:
    strategy, here = get_strategy("streaming_diloco", sync_every=6, fragments=3, overlap=1), world()
    sent = {step: strategy.step(step, here).exchanges for step in range(12)}
    assert {step: command[0].layers for step, command in sent.items() if command} == {
        1: (1,), 3: (2,), 5: (0,), 7: (1,), 9: (2,), 11: (0,)
    }  # fmt: skip
    assert all(command[0].codec == "int4" for command in sent.values() if command)
    arrived = {step: c.layers for step in range(12) for c in strategy.step(step, here).commands if isinstance(c, Mean)}
    assert arrived == {step + 1: command[0].layers for step, command in sent.items() if command and step < 11}


def test_streaming_mixes_local_and_outer_parameters() -> None:
    found = group(
        "streaming_diloco", sync_every=4, fragments=1, overlap=1, mix=0.25, codec="identity", outer_momentum=0.0, outer_lr=1.0
    )
    found.run(4)
    sent = [flat(found, rank) for rank in range(3)]
    alone = group("local_sgd", sync_every=100)
    alone.run(5)
    found.run(1)
    for rank in range(3):
        close(flat(found, rank), 0.25 * flat(alone, rank) + 0.75 * np.mean(sent, axis=0))


def test_gossip_pairs_are_matchings_over_the_links() -> None:
    links = ((0, 1), (1, 2), (3, 2), (3, 0))
    for number in range(20):
        pairs = pairs_of(number, 4, links)
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))
        assert all(pair in links or pair[::-1] in links for pair in pairs)
    assert len({pairs_of(number, 4) for number in range(20)}) == 3


def test_gossip_draws_replicas_together_and_can_keep_variance() -> None:
    alone, talking = group("local_sgd", members=4, sync_every=100), group("gossip", members=4)
    alone.run(20)
    talking.run(20)
    assert talking.spread() < 0.5 * alone.spread()
    random = np.random.default_rng(0)
    for keep in (True, False):
        found = group("gossip", members=2, on=task(lr=0.0), keep_variance=keep)
        for replica in found.replicas:
            replica.registers["parameters"] = [random.standard_normal(layer.shape) for layer in start()]
        before = np.mean([replica.parameters[1].var() for replica in found.replicas])
        found.run(1)
        after = found.replicas[0].parameters[1].var()
        assert (after == pytest.approx(before)) == keep
        assert keep or after < 0.75 * before


def test_seed_and_scalar_sends_a_few_bytes_and_stays_equal() -> None:
    for bits in (8, 16, 32):
        found = group("seed_and_scalar", on=small("seed_and_scalar"), bits=bits)
        losses = found.run(60)
        assert found.replicas[0].sent_bytes == 60 * bits / 8
        assert np.array_equal(flat(found, 0), flat(found, 2))
        assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:5])


def test_shares_of_samples_weigh_the_mean() -> None:
    from farflung.testing.replicas import Group

    shares = (0.5, 0.3, 0.2)
    found = Group(get_strategy("ssgd"), world(shares=shares), task())
    found.run(1)
    grads = [gradient(start(), 0, member)[1] for member in range(3)]
    moved = [p - 0.1 * sum(s * g[i] for s, g in zip(shares, grads, strict=True)) for i, p in enumerate(start())]
    close(flat(found), np.concatenate([layer.reshape(-1) for layer in moved]))


def away(step: int) -> Collection[int]:
    return (2,) if 3 <= step < 9 else ()


def test_a_missing_member_is_left_out_of_the_mean() -> None:
    found = group("ssgd", absent=lambda step: (2,))
    found.run(5)
    close(flat(found), by_hand(5, members=2))
    assert np.array_equal(flat(found, 2), np.concatenate([layer.reshape(-1) for layer in start()]))


#: Every sender of an exchange counts here, and workers end the attempt when one is lost.
NOBODY_LEAVES = {"fedbuff", "fedfix", "fedcompass", "fedamd", "fedkseed", "modest"}


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - NOBODY_LEAVES))
def test_members_come_and_go(name: str) -> None:
    settings = quick(name)
    found = group(name, members=4, absent=away, **settings)
    losses = found.run(60)
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:5])
    if not found.strategy.traits.updates_early and name not in {"gossip", "streaming_diloco", "dimat"}:
        assert np.array_equal(flat(found, 0), flat(found, 2))
    for register in found.strategy.traits.registers:
        if register.shared:
            assert np.array_equal(flat(found, 0, register.name), flat(found, 2, register.name))


def test_members_that_wait_for_nothing_are_an_error() -> None:
    found = group("ssgd")
    found.replicas[0].queue.append(Mean(tag="never", into="gradient", layers=(0,), group=(0, 1, 2), weights=(1.0, 1.0, 1.0)))
    with pytest.raises(RuntimeError, match="all replicas wait"):
        found.run(1)


@pytest.mark.parametrize("on", [task(momentum=0.9), MOMENTUM, ADAMW, task(weight_decay=0.1)])
def test_the_inner_optimizers_are_torchs(on: Any) -> None:
    import torch

    from farflung.testing.replicas import Inner

    spec = on.optimizer
    ours, inner = np.linspace(-1, 1, 5), Inner(spec, 1)
    theirs = torch.tensor(ours.copy(), requires_grad=True)
    if spec.name == "adamw":
        optimizer: Any = torch.optim.AdamW([theirs], lr=spec.lr)
    else:
        optimizer = torch.optim.SGD(
            [theirs], lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=spec.weight_decay or 0.0
        )
    for step in range(5):
        move = np.sin(np.arange(5) + step)
        inner.update(0, ours, move)
        theirs.grad = torch.from_numpy(move)
        optimizer.step()
    close(ours, theirs.detach().numpy())


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("dilico", {}, "unknown sync strategy 'dilico': did you mean 'diloco'? known are asc_wfbp, branch_train_merge, co2, "),
        ("local_sgd", {"h": 3}, "strategy 'local_sgd' has no setting 'h': known are sync_every, by_speed, adapt, codec"),
        (
            "dreamddp",
            {"method": "free"},
            "strategy 'dreamddp' has no setting 'method': known are sync_every, fill, adapt, sets, tied, codec",
        ),
    ],
)
def test_unknown_names_and_settings_list_the_known(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_strategy(name, **settings)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(("name", "method"), [("dreamddp", "dreamddp"), ("contiguous", "optimal"), ("free_sets", "free")])
def test_three_names_are_partial_synchronization_with_a_method(name: str, method: str) -> None:
    named, given = get_strategy(name, sync_every=3), get_strategy("partial", sync_every=3, method=method)
    here = world(layers=5)
    assert [named.step(step, here) for step in range(6)] == [given.step(step, here) for step in range(6)]
    assert (named.traits.name, given.traits.name) == (name, "partial")


def test_partial_synchronization_takes_known_methods_only() -> None:
    with pytest.raises(InputError, match="unknown method 'best': known are free, optimal, dreamddp, equal_number"):
        get_strategy("partial", method="best")


def test_every_file_of_the_folder_brings_its_strategies() -> None:
    files = [import_module(f"{strategies.__name__}.{module.name}") for module in pkgutil.iter_modules(strategies.__path__)]
    assert len(files) > 5
    assert {name for file in files for name in file.STRATEGIES} == {
        name for name in STRATEGIES if not STRATEGIES.brought_by(name)
    }


@pytest.mark.parametrize(("name", "fills"), [("dreamddp", True), ("contiguous", True), ("free_sets", True), ("partial", False)])
def test_bubbles_are_filled_by_default_but_in_the_equal_number_baseline(name: str, fills: bool) -> None:
    """Filling is a part of Algorithm 2; ``partial`` by itself is the paper's PLSGD-ENP."""
    layers = tuple(LayerInfo(nbytes=Bytes(4), bp_seconds=Seconds(1.0), comm_seconds=Seconds(0.1)) for _ in range(6))
    here = World(rank=0, members=2, layers=layers)

    def exchanged(**settings: Any) -> int:
        strategy = get_strategy(name, sync_every=3, **settings)
        return sum(len(strategy.step(step, here).exchanges) for step in range(3))

    assert exchanged(fill=False) == 6 < exchanged(fill=True)
    assert exchanged() == exchanged(fill=fills)
