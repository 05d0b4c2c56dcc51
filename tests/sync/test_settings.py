"""What strategies, worlds, rounds and robust rules refuse, and how a minority of liars fares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.job.load import make_job
from farflung.sync import SyncRound, World, check_clipping, get_strategy, renormalized
from farflung.sync.robust_rules import RULES, merged
from farflung.testing.replicas import Task
from farflung.units import Seconds
from tests.support.models.small_nets import flat, gradient, group, start, task, world

REMEDY = ", and this codec leaves out or blurs most of them; set 'identity', 'fp16', 'bf16', 'int8' or 'int4'"


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("local_sgd", {"sync_every": 0}, "sync_every = 0: must be a whole number, 1 or more"),
        ("free_sets", {"sync_every": -1}, "sync_every = -1: must be a whole number, 1 or more"),
        ("diloco", {"sync_every": 2.5}, "sync_every = 2.5: must be a whole number, 1 or more"),
        ("diloco", {"outer_lr": 0}, "outer_lr = 0: must be a number, above 0"),
        ("diloco", {"outer_momentum": 1.0}, "outer_momentum = 1.0: must be a number, at least 0 and below 1"),
        ("co2", {"clip": -1}, "clip = -1: must be a number, at least 0"),
        ("streaming_diloco", {"mix": 1}, "mix = 1: must be a number, at least 0 and below 1"),
        (
            "streaming_diloco",
            {"sync_every": 3, "overlap": 3},
            "overlap = 3 with sync_every = 3: a fragment must arrive before it leaves again; set overlap to at most 2",
        ),
        (
            "streaming_diloco",
            {"sync_every": 2, "fragments": 3},
            "fragments = 3 with sync_every = 2: at most one fragment leaves in a step; set fragments to at most 2",
        ),
        ("local_sgd", {"adapt": 1.0}, "adapt = 1.0: must be a number, at least 0 and below 1"),
        ("diloco", {"adapt": -0.1}, "adapt = -0.1: must be a number, at least 0 and below 1"),
        ("co2", {"adapt": "no"}, "adapt = 'no': must be a number, at least 0 and below 1"),
        ("asc_wfbp", {"simultaneous": 0}, "simultaneous = 0: must be a whole number, 1 or more"),
        ("asc_wfbp", {"merge_bytes": "4 MB"}, "merge_bytes = '4 MB': must be a number, at least 0"),
        ("asc_wfbp", {"fitted": "yes"}, "fitted = 'yes': write true or false"),
        ("gossip", {"links": "ringg"}, "links = 'ringg': write pairs of members' numbers, e.g. [[0, 1], [1, 2]] (empty: all)"),
        (
            "gossip",
            {"links": [[0, 1, 2]]},
            "links = [[0, 1, 2]]: write pairs of members' numbers, e.g. [[0, 1], [1, 2]] (empty: all)",
        ),
        ("robust", {"rule": "krum"}, "unknown rule 'krum': known are trimmed_mean, geometric_median, flag"),
        ("robust", {"faulty": 0}, "faulty = 0: must be a whole number, 1 or more"),
        ("seed_and_scalar", {"bits": 4}, "bits = 4: a number is sent in 8, 16 or 32 bits"),
        ("seed_and_scalar", {"scale": 0.0}, "scale = 0.0: must be a number, above 0"),
        (
            "seed_and_scalar",
            {"codec": "int8"},
            "codec = 'int8': seed_and_scalar sends single numbers, which no codec makes smaller; set 'identity'",
        ),
        (
            "dreamddp",
            {"codec": "topk"},
            "codec = 'topk': dreamddp compares or averages parameters" + REMEDY,
        ),
        (
            "robust",
            {"codec": "topk"},
            "codec = 'topk': robust compares or averages single coordinates" + REMEDY,
        ),
        ("ssgd", {"codec": "int8", "memory": "all"}, "memory = 'all': known are none, error_feedback, dgc, difference, econtrol"),
        (
            "ssgd",
            {"memory": "error_feedback"},
            "memory = 'error_feedback', warm_up = 0 with codec = 'identity', which drops nothing: set a codec, or leave both out",
        ),
        ("ssgd", {"codec": "topk", "warm_up": -1}, "warm_up = -1: must be a whole number, 0 or more"),
        ("ssgd", {"codec": ""}, "codec = '': write a codec's name, e.g. 'identity'"),
        ("free_sets", {"sync_every": 2, "sets": ((0,),)}, "1 sets with sync_every = 2: give one set for each step of a period"),
        ("free_sets", {"adapt": 1.0}, "adapt = 1.0: must be a number, at least 0 and below 1"),
        (
            "free_sets",
            {"adapt": 0.1, "codec": "int8"},
            (
                "adapt = 0.1 chooses sets from measured exchanges that are added up on the way: remove sets, and set "
                "codec = 'identity'; or set adapt to 0"
            ),
        ),
        (
            "free_sets",
            {"sync_every": 1, "sets": ((0,),), "fill": True},
            "fill = true adds to sets that a method has chosen: remove sets, or write the layers into them",
        ),
    ],
)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_strategy(name, **settings)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (
            "free_sets",
            {"sync_every": 4},
            "sync_every = 4 with 3 layers: each step averages at least one layer (tied layers count once), set it to at most 3",
        ),
        ("partial", {"sync_every": 2, "sets": ((0,), (1,))}, "sets [[0], [1]]: each layer from 0 to 2 must be in exactly one"),
        (
            "streaming_diloco",
            {"fragments": 4},
            "fragments = 4 with 3 layers: each fragment needs a layer; set fragments to at most 3",
        ),
        (
            "robust",
            {"faulty": 2},
            "faulty = 2 in a group of 3: most members must be sound; take 5 replicas or more, or set faulty to at most 1",
        ),
        ("gossip", {"links": ((0, 5),)}, "link [0, 5]: name two different members from 0 to 2"),
        ("gossip", {"links": ((0, 1),)}, "links [[0, 1]]: no chain of links joins members 0 and 2; add one"),
    ],
)
def test_settings_that_do_not_fit_the_group_are_refused(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_strategy(name, **settings).init(world())
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("here", "text"),
    [
        (
            world(members=1),
            "a group of 1 has nobody to synchronize with: give the stage 2 replicas or more, or remove the sync section",
        ),
        (World(rank=3, members=3, layers=world().layers), "rank 3 in a group of 3: ranks go from 0 to 2"),
        (World(rank=0, members=3, layers=()), "a group without layers has nothing to synchronize: give at least one layer"),
        (world(shares=(0.5, 0.5)), "2 shares for 3 members: give one of each, or none for equal shares"),
        (world(shares=(0.5, 0.4, 0.3)), "shares [0.5, 0.4, 0.3]: each must be above 0, and they must add up to 1"),
    ],
)
def test_wrong_groups_are_refused_by_all(here: World, text: str) -> None:
    for name in ("ssgd", "free_sets", "diloco", "streaming_diloco", "gossip", "robust"):
        with pytest.raises(InputError) as caught:
            get_strategy(name, **({"sync_every": 3} if name == "free_sets" else {})).init(here)
        assert str(caught.value) == text


def test_clipping_by_all_gradients_needs_all_gradients() -> None:
    with pytest.raises(InputError) as caught:
        check_clipping(get_strategy("free_sets").traits, 1.0)
    assert str(caught.value) == (
        "clip_norm = 1: free_sets updates a layer before all gradients are known; remove clip_norm, set clip_by = 'previous' (by "
        "the norm of the step before), or choose a strategy that updates at the end of a step"
    )
    check_clipping(get_strategy("free_sets").traits, None)
    check_clipping(get_strategy("free_sets").traits, 1.0, by_previous_step=True)
    check_clipping(get_strategy("diloco").traits, 1.0)


@pytest.mark.parametrize("name", ["ssgd", "wfbp", "asc_wfbp", "delayed", "lgreco", "robust"])
def test_averaged_gradients_are_not_clipped_by_norms_of_replicas(name: str) -> None:
    check_clipping(get_strategy(name).traits, None)
    check_clipping(get_strategy(name).traits, 1.0, by_previous_step=True)
    with pytest.raises(InputError) as caught:
        check_clipping(get_strategy(name).traits, 1.0)
    assert str(caught.value) == (
        f"clip_norm = 1: {name} averages gradients after each replica has taken the norm of its own, so replicas would clip "
        "differently and drift apart; set clip_by = 'previous' (by the norm of the step before), remove clip_norm, or take "
        "strategy = 'exact' (order = 'any' for sums by a ring or a tree), which clips by the norm of the mean"
    )


@pytest.mark.parametrize("rule", RULES)
def test_equal_members_are_their_own_aggregate(rule: str) -> None:
    row = np.linspace(-1, 2, 7)
    np.testing.assert_allclose(RULES[rule](np.stack([row] * 5), 2), row, rtol=1e-9)
    assert not RULES[rule](np.zeros((5, 3)), 1).any()
    assert RULES[rule](np.zeros((5, 3), dtype=np.float32), 1).dtype == np.float32


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lie", [1e6, -1e6, -3.0, float("nan"), float("inf")])
def test_a_minority_of_liars_moves_the_aggregate_little(rule: str, lie: float) -> None:
    random = np.random.default_rng(0)
    truth = random.standard_normal(500)
    rows = truth + 0.5 * random.standard_normal((7, 500))
    rows[:2] = lie * truth if abs(lie) < 10 else lie
    found = RULES[rule](rows, 2)
    off = np.linalg.norm(found - truth) / np.linalg.norm(truth)
    assert off < 0.55
    assert not np.linalg.norm(rows.mean(axis=0) - truth) / np.linalg.norm(truth) < 0.55


def test_trimmed_mean_leaves_out_both_ends() -> None:
    rows = np.array([[1.0, 9.0], [2.0, 1.0], [3.0, 2.0], [100.0, 3.0]])
    np.testing.assert_allclose(RULES["trimmed_mean"](rows, 1), [2.5, 2.5])


def test_trimmed_mean_counts_a_spoilt_number_as_a_faulty_one_of_its_coordinate() -> None:
    nan, inf = float("nan"), float("inf")
    rows = np.array([[1.0, 1.0, 1.0], [2.0, nan, inf], [3.0, 3.0, nan], [5.0, 8.0, 2.0], [9.0, 9.0, 9.0]])
    np.testing.assert_allclose(RULES["trimmed_mean"](rows, 1)[:2], [(2 + 3 + 5) / 3, (1 + 3 + 8 + 9) / 4])
    np.testing.assert_allclose(RULES["trimmed_mean"](rows, 2), [3.0, (3 + 8) / 2, (1 + 2 + 9) / 3])
    assert merged("trimmed_mean", rows, 2)[1] == (1, 2)


@pytest.mark.parametrize("rule", ["geometric_median", "flag"])
def test_rules_over_whole_vectors_do_not_see_spoilt_ones(rule: str) -> None:
    rows = np.random.default_rng(2).standard_normal((5, 40))
    spoilt = rows.copy()
    spoilt[2, 7] = float("-inf")
    found, excluded = merged(rule, spoilt, 1)
    assert excluded == (2,)
    np.testing.assert_array_equal(found, RULES[rule](np.delete(rows, 2, axis=0), 0))
    assert merged(rule, rows * 1e300, 1)[1] == (), "a sum that overflows is no spoilt number"


def test_geometric_median_of_a_line_is_the_middle() -> None:
    np.testing.assert_allclose(RULES["geometric_median"](np.array([[0.0], [1.0], [50.0]]), 1), [1.0], atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_training_survives_a_liar(rule: str) -> None:
    def lying(parameters: Any, step: int, member: int) -> tuple[float, list[Any]]:
        loss, grads = gradient(parameters, step, member)
        return loss, [-20.0 * grad for grad in grads] if member == 4 else grads

    on = Task(start=start(), gradient=lying, optimizer=task().optimizer)
    robust, plain = group("robust", on=on, members=5, rule=rule), group("ssgd", on=on, members=5)
    losses, lost = robust.run(30), plain.run(20)
    assert np.mean(losses[-5:]) < 0.75 * losses[0]
    assert not np.mean(lost[-5:]) < 2 * lost[0]
    assert np.isfinite(flat(robust)).all()


def test_weights_are_renormalized_over_who_is_present() -> None:
    assert renormalized((0, 1, 2), (0.5, 0.25, 0.25), {0, 2}) == {0: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}
    with pytest.raises(InputError) as caught:
        renormalized((0, 1), (0.5, 0.5), {7})
    assert str(caught.value) == "no member of the group [0, 1] is present: wait for one, or go back to a checkpoint"


def opened(quorum: int = 1) -> SyncRound:
    return SyncRound(group=(0, 1, 2), weights=(0.5, 0.3, 0.2), deadline=Seconds(10), quorum=quorum)


def test_a_round_closes_when_all_have_arrived_or_at_the_deadline() -> None:
    found = opened().arrive(0, 1.0).arrive(1, 2.0)
    assert not found.closed
    assert found.arrive(2, 3.0).closed
    late = found.tick(10.0)
    assert late.closed
    assert late.missing == (2,)
    assert late.shares() == {0: pytest.approx(0.625), 1: pytest.approx(0.375)}
    assert late.arrive(2, 11.0) == late


def test_a_round_waits_for_its_quorum_and_not_for_the_dead() -> None:
    found = opened(quorum=2).arrive(0, 1.0).tick(20.0)
    assert not found.closed
    assert found.arrive(1, 21.0).closed
    assert found.leave(2, 22.0).leave(1, 22.0).closed
    assert not opened().tick(30.0).closed, "a round that nobody has joined stays open"
    assert opened().arrive(9, 1.0) == opened()
    assert opened().arrive(0, 1.0).leave(0, 2.0).arrived == {0}, "what has arrived counts"


@given(st.lists(st.tuples(st.sampled_from(["arrive", "leave", "tick"]), st.integers(0, 4), st.floats(0, 20)), max_size=20))
def test_rounds_never_reopen_and_their_shares_add_up(events: list[tuple[str, int, float]]) -> None:
    found = opened(quorum=2)
    for kind, member, now in events:
        before = found
        found = found.tick(now) if kind == "tick" else getattr(found, kind)(member, now)
        assert found.closed or not before.closed
        assert before.arrived <= found.arrived <= set(found.group) <= set(before.group)
        if found.closed:
            assert sum(found.shares().values()) == pytest.approx(1.0)
            assert before == found or not before.closed


def test_deadlines_are_refused_where_every_replica_counts() -> None:
    with pytest.raises(InputError, match=r"sync\.patience = 2 with strategy = 'exact': its result is that of one machine"):
        make_job({"sync": {"patience": 2.0}})
    with pytest.raises(InputError, match=r"sync\.settings\.sync_every means nothing with strategy = 'exact': remove it"):
        make_job({"sync": {"settings": {"sync_every": 5}}})
    shared = {"plan": {"replicas": 2}, "sync": {"strategy": "ssgd"}}
    with pytest.raises(InputError, match=r"virtual_replicas = 2 orders the sums of strategy = 'exact' only, this is 'ssgd'"):
        make_job(shared | {"micro_batch_sizes": [1, 1], "virtual_replicas": 2})
    with pytest.raises(InputError, match=r"replicas that train alone can't leave out a step"):
        make_job(shared | {"on_nan": "skip"})
