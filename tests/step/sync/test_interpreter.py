"""Replicas that agree by a strategy: against each other, against exact sums, and against the NumPy specification."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import PlanError
from farflung.job.spec import EvaluateSpec
from farflung.plan.model import Plan
from farflung.plan.synchronization import check_sync, strategy_of, world_of
from farflung.step.reduction.averaging import Averager, Outcome
from farflung.sync import STRATEGIES, get_strategy
from farflung.sync.commands import Exchange
from farflung.telemetry import injecting
from tests.support.steps.executor_threads import Case, Ran, differing, hand_plan, newest, other, random_batches, run_threads
from tests.support.steps.strategy_cases import ELSEWHERE, GRID, SETTINGS, SGD, assert_agreed, case_of, close, straight
from tests.support.steps.strategy_specification import as_specified


@pytest.mark.parametrize("grid", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["2 x 2", "2 x 1"])
@pytest.mark.parametrize(("strategy", "settings"), [("ssgd", {}), ("wfbp", {}), ("asc_wfbp", {}), ("asc_wfbp", {"fitted": True})])
def test_gradients_averaged_in_every_step_give_the_exact_run_but_for_rounding(
    strategy: str, settings: dict[str, Any], grid: bool
) -> None:
    close(run_threads(case_of("exact", grid=grid)), run_threads(case_of(strategy, settings, grid=grid)))


ONE = {"sync_every": 1}
SAME = {
    "local_sgd": ONE,
    "partial": ONE,
    "dreamddp": ONE,
    "free_sets": ONE,
    "diloco": ONE | {"outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False},
}


@pytest.mark.parametrize("strategy", SAME)
def test_rounds_of_one_step_are_synchronous_sgd(strategy: str) -> None:
    close(run_threads(case_of("ssgd")), run_threads(case_of(strategy, SAME[strategy])))


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "lr": 0.02},
    "momentum": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True},
    "adamw": {"name": "adamw", "lr": 3e-3},
}


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (name, optimizer)
        for name in sorted(set(STRATEGIES) - ELSEWHERE)
        for optimizer in OPTIMIZERS
        if optimizer == "sgd" or not get_strategy(name).traits.plain_sgd
    ],
)
def test_every_strategy_trains_with_every_optimizer_and_ends_in_agreement(strategy: str, optimizer: str) -> None:
    sizes = [4] * 4
    case = case_of(strategy, SETTINGS.get(strategy), steps=8, micro_batch_sizes=sizes, optimizer=OPTIMIZERS[optimizer])
    ran = run_threads(other(case, batch=lambda step, index: random_batches(sizes)(0, index)))
    assert len(ran.losses) == 8
    assert all(np.isfinite(loss) for loss in ran.losses)
    assert np.mean(ran.losses[-2:]) < np.mean(ran.losses[:2]), "the same samples in every step: what is learnt shows"
    for one, two in (("a", "c"), ("b", "d")):
        assert ran.held[one].keys() == ran.held[two].keys()
        assert_agreed(strategy, ran.held[one], ran.held[two])
    assert_tied(ran)


def assert_tied(ran: Ran) -> None:
    """What both stages of a pipeline hold is the same in both, bit for bit."""
    for first, second in (("a", "b"), ("c", "d")):
        common = sorted(ran.held[first].keys() & ran.held[second].keys())
        assert common
        one, two = ({name: ran.held[device][name] for name in common} for device in (first, second))
        assert differing(one, two) == []


@pytest.mark.parametrize("grid", [True, False], ids=["2 x 2", "2 x 1"])
def test_seed_and_scalar_keeps_replicas_equal_bit_for_bit_and_no_cut_of_the_model_changes_it(grid: bool) -> None:
    settings = {"scale": 0.01, "bits": 8}
    ran = run_threads(case_of("seed_and_scalar", settings, grid=grid, steps=4, optimizer={"name": "adamw", "lr": 1e-2}))
    for one, two in (("a", "c"), ("b", "d"))[: 2 if grid else 1]:
        assert differing(ran.held[one], ran.held[two]) == []
    whole = run_threads(case_of("seed_and_scalar", settings, grid=False, steps=4, optimizer={"name": "adamw", "lr": 1e-2}))
    assert differing(ran.states, whole.states) == []
    assert ran.losses == whole.losses


def test_seed_and_scalar_sends_a_number_of_each_replica_and_nothing_else_between_them() -> None:
    ran = run_threads(case_of("seed_and_scalar", {"bits": 8}, grid=False))
    sent = [sum(report.sent.values()) for report in ran.reports]
    assert sent == [1, 1, 1]


def test_robust_rules_take_three_members() -> None:
    replicas = {0: [("a", range(1)), ("b", range(1, 2)), ("c", range(2, 4))]}
    case = other(case_of("robust", {"rule": "trimmed_mean", "faulty": 1}, grid=False), replicas=replicas)
    ran = run_threads(case)
    assert differing(ran.held["a"], ran.held["b"]) == []


PARTIAL = ["partial", "dreamddp", "contiguous", "free_sets", "streaming_diloco"]


@pytest.mark.parametrize("strategy", PARTIAL)
def test_copies_in_two_stages_leave_in_the_same_step(strategy: str) -> None:
    """In any step: also where a run does not end with a mean of everything, as one that is handed over."""
    plan = hand_plan(case := case_of(strategy, SETTINGS[strategy]), graph := case.graphs()[4])
    assert plan.sync is not None
    layers = plan.sync.layers
    common = {n for layer in layers[0] for n in layer.parameters} & {n for layer in layers[1] for n in layer.parameters}
    assert common
    for step in range(4):
        leaving = []
        for stage in (0, 1):
            world = world_of(plan, graph, case.job, stage)
            sends = [c for c in strategy_of(plan).step(step, world).commands if isinstance(c, Exchange)]
            leaving.append({n for c in sends for layer in c.layers for n in layers[stage][layer].parameters} & common)
        assert leaving[0] == leaving[1]
        assert leaving[0] in (set(), common)


SPLIT: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "penalty": ("co2", {}, {}, "it damps by norms of a stage; set penalty = false, or plan with one stage"),
    "clip": ("co2", {"penalty": False, "clip": 1.0}, {}, "it clips by norms of a stage; set clip = 0, or plan with one stage"),
    "variance": ("gossip", {}, {}, "it scales by variances of a layer; set keep_variance = false, or plan with one stage"),
    "patience": (
        "local_sgd",
        {},
        {"patience": 1.0},
        "in each stage (sync.patience); set sync.patience = 0, or plan with one stage",
    ),
    "rule": ("robust", {"rule": "flag"}, {}, "judges members stage by stage; set rule = 'trimmed_mean', or plan with one stage"),
}


@pytest.mark.parametrize(("strategy", "settings", "more", "text"), SPLIT.values(), ids=SPLIT)
def test_what_would_part_copies_in_two_stages_is_refused(
    strategy: str, settings: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    sync = {"strategy": strategy, "settings": settings} | more
    case = case_of(strategy, sync=sync)
    with pytest.raises(PlanError) as caught:
        hand_plan(case, case.graphs()[4])
    assert "stages 0 and 1 hold '" in str(caught.value)
    assert text in str(caught.value)


def test_given_sets_that_would_part_copies_are_refused() -> None:
    case = case_of("free_sets", {"sync_every": 2})
    plan = hand_plan(case, graph := case.graphs()[4])
    assert plan.sync is not None
    first, second = plan.sync.layers
    turned = second[1:] + second[:1]
    common = {name for layer in first for name in layer.parameters} & {name for layer in second for name in layer.parameters}
    places = [next(n for n, layer in enumerate(layers) if common & set(layer.parameters)) for layers in (first, turned)]
    assert places[0] != places[1]
    sets = ((places[0],), tuple(layer for layer in range(len(first)) if layer != places[0]))
    sync = replace(plan.sync, layers=(first, turned), settings=(("sets", sets), ("sync_every", 2)))
    with pytest.raises(PlanError) as caught:
        check_sync(replace(plan, sync=sync), graph, case.job)
    assert "in different steps (sets); put them into the same set of both, or remove sets, or plan with one stage" in str(
        caught.value
    )


def test_replicas_drift_apart_between_rounds_and_the_run_says_how_far() -> None:
    ran = run_threads(case_of("local_sgd", {"sync_every": 2}, steps=4))
    far = [report.divergence for report in ran.reports]
    assert far[0] is None
    assert far[1] is not None
    assert far[1] > 0
    assert far[2] is None


def test_lossy_exchanges_leave_replicas_equal() -> None:
    """A member counts its own gradient as the others read it."""
    ran = run_threads(case_of("ssgd", {"codec": "int8"}))
    assert differing(ran.held["a"], ran.held["c"]) == []


REMEMBERING: dict[str, dict[str, Any]] = {
    "error feedback": {"codec": "topk:ratio=4,values=int8", "memory": "error_feedback"},
    "dgc with warm-up": {"codec": "topk:ratio=8", "memory": "dgc:momentum=0.5,clip=2.0", "warm_up": 2},
    "differences": {"codec": "topk:ratio=4", "memory": "difference"},
    "error control": {"codec": "topk:ratio=4", "memory": "econtrol:eta=0.3"},
    "warm low rank": {"codec": "lowrank:rank=1", "memory": "error_feedback"},
}


@pytest.mark.parametrize("settings", REMEMBERING.values(), ids=list(REMEMBERING))
def test_what_codecs_drop_is_remembered_and_replicas_stay_equal(settings: dict[str, Any]) -> None:
    """And with memory the run comes nearer to the one that drops nothing than without."""
    sizes = [4] * 4

    def ran(more: Mapping[str, Any]) -> Ran:
        case = case_of("ssgd", more, grid=False, steps=12, micro_batch_sizes=sizes, optimizer={"name": "sgd", "lr": 0.02})
        return run_threads(other(case, batch=lambda step, index: random_batches(sizes)(0, index)))

    with_memory = ran(settings)
    assert differing(with_memory.held["a"], with_memory.held["c"]) == []
    if "dgc" in settings["memory"]:
        return  # momentum of its own: another method, not nearer to the plain one
    dense, without = ran({}), ran({"codec": settings["codec"]})

    def far(one: Ran) -> float:
        return sum(float(np.square(one.states[name] - dense.states[name]).sum()) for name in dense.states)

    assert far(with_memory) < far(without)


@pytest.mark.parametrize("settings", REMEMBERING.values(), ids=list(REMEMBERING))
def test_codecs_of_exchanges_are_measured(settings: dict[str, Any]) -> None:
    """Seconds and errors by stage, as codecs on links have them; what differences lose is what the others lack."""
    sizes = [4] * 4
    case = case_of("ssgd", settings, grid=False, steps=2, micro_batch_sizes=sizes, optimizer={"name": "sgd", "lr": 0.02})
    reports = run_threads(other(case, batch=lambda step, index: random_batches(sizes)(0, index))).reports
    uses = [report.codecs for report in reports]
    assert {link for use in uses for link in use} == {(0, 0)}
    assert sum(use[0, 0].encode_seconds for use in uses if use) > 0
    assert sum(use[0, 0].decode_seconds for use in uses if use) > 0
    errors = [use[0, 0].error for use in uses if use and use[0, 0].error is not None]
    assert errors
    first = errors[0]
    assert first is not None
    if settings["memory"] in ("difference", "econtrol:eta=0.3"):
        assert 0 < first < 0.01, "the first array comes as float16"
    else:
        assert 0.01 < first < 1.5


def test_exchanges_without_a_codec_are_not_measured() -> None:
    assert all(not report.codecs for report in run_threads(case_of("local_sgd", {"sync_every": 2}, steps=4)).reports)


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}])
def test_a_memory_with_momentum_wants_an_optimizer_without(optimizer: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="the memory has the momentum itself; set optimizer"):
        run_threads(case_of("ssgd", {"codec": "topk", "memory": "dgc"}, grid=False, optimizer=optimizer))


@pytest.mark.parametrize("strategy", ["wfbp", "asc_wfbp", "delayed", "diloco", "co2"])
def test_other_strategies_remember_too(strategy: str) -> None:
    settings = SETTINGS.get(strategy, {}) | {"codec": "topk:ratio=4", "memory": "error_feedback"}
    ran = run_threads(case_of(strategy, settings, steps=6))
    for one, two in (("a", "c"), ("b", "d")):
        assert differing(ran.held[one], ran.held[two]) == []
    plain = run_threads(case_of(strategy, settings | {"memory": "none"}, steps=6))
    assert differing(ran.states, plain.states), "what is remembered is used"


def test_clipping_stays_inside_a_pipeline() -> None:
    ran = run_threads(case_of("local_sgd", {"sync_every": 2}, optimizer=SGD | {"clip_norm": 0.01}))
    assert all(np.isfinite(loss) for loss in ran.losses)
    assert ran.reports[0].grad_norm is not None


#: As in ``SETTINGS``, without lossy codecs and with what a specification in NumPy can follow.
SPECIFIED: dict[str, dict[str, Any]] = {
    "ssgd": {},
    "delayed": {},
    "local_sgd": {"sync_every": 2},
    "contiguous": {"sync_every": 2},
    "free_sets": {"sync_every": 3},
    "diloco": {"sync_every": 2},
    "streaming_diloco": {"sync_every": 3, "fragments": 2, "overlap": 1, "codec": "identity"},
    "co2": {"sync_every": 2, "clip": 0.5},
    "gossip": {},
    "seed_and_scalar": {"scale": 0.05, "bits": 32},
}


@pytest.mark.parametrize("strategy", SPECIFIED)
def test_workers_do_what_the_specification_in_numpy_does(strategy: str) -> None:
    as_specified(other(case_of(strategy, SPECIFIED[strategy], grid=False, steps=7), make=straight))


BY_SPEED: dict[str, tuple[str, dict[str, Any], str, tuple[int, int]]] = {
    "local_sgd, the leader is slow": ("local_sgd", {"sync_every": 4}, "adamw", (1, 4)),
    "local_sgd, the other is slow": ("local_sgd", {"sync_every": 3}, "sgd", (3, 2)),
    "diloco": ("diloco", {"sync_every": 3, "outer_lr": 0.8}, "momentum", (3, 1)),
    "co2": ("co2", {"sync_every": 3}, "sgd", (2, 3)),
}


@pytest.mark.parametrize(("strategy", "settings", "optimizer", "steps"), BY_SPEED.values(), ids=BY_SPEED)
def test_workers_with_unequal_steps_do_what_the_specification_does(
    strategy: str, settings: dict[str, Any], optimizer: str, steps: tuple[int, int]
) -> None:
    case = case_of(strategy, settings | {"by_speed": True, "adapt": 0.0}, grid=False, steps=8, optimizer=OPTIMIZERS[optimizer])
    as_specified(other(case, make=straight, local_steps=steps))


def test_pipelines_of_two_stages_rest_together() -> None:
    """Tied weights between stages, too; replicas agree at the end, and every step has the losses of those who took it."""
    case = case_of("local_sgd", {"sync_every": 2, "by_speed": True, "adapt": 0.0}, steps=4)
    ran = run_threads(other(case, local_steps=(2, 1)))
    assert [len(report.losses) for report in ran.reports] == [4, 2, 4, 2]
    assert all(np.isfinite(loss) for loss in ran.losses)
    for one, two in (("a", "c"), ("b", "d")):
        assert_agreed("local_sgd", ran.held[one], ran.held[two])
    sizes, losses = [3, 2], ran.reports[1].losses
    assert ran.losses[1] == pytest.approx(np.dot(sizes, losses) / sum(sizes))


def test_the_fast_go_on_while_the_slow_one_computes() -> None:
    """The last backward of the slow pipeline's step ends only when the fast one has begun its next step."""
    on, backwards = threading.Event(), list[str]()

    def look(name: str, facts: Mapping[str, int | str]) -> None:
        place = facts["device"], facts["step"]
        if name == "worker.before_forward" and place == ("a", 1):
            on.set()
        if name == "worker.before_backward" and place == ("c", 0):
            backwards.append(name)
            if len(backwards) == 2:
                assert on.wait(60), "the fast pipeline waits for the slow one"

    case = case_of("local_sgd", {"sync_every": 2, "by_speed": True, "adapt": 0.0}, grid=False, steps=2)
    with injecting(look):
        assert len(run_threads(other(case, local_steps=(2, 1))).losses) == 2
    assert len(backwards) == 2


def test_who_rests_in_no_step_changes_nothing() -> None:
    case = case_of("local_sgd", {"sync_every": 2}, grid=False)
    paced = case_of("local_sgd", {"sync_every": 2, "by_speed": True, "adapt": 0.0}, grid=False)
    assert differing(run_threads(case).states, run_threads(other(paced, local_steps=(2, 2))).states) == []


@pytest.mark.parametrize("strategy", ["delayed", "co2", "streaming_diloco", "local_sgd"])
def test_a_run_that_goes_on_waits_for_nothing_from_before(strategy: str, tmp_path: Path) -> None:
    """Exchanges that end in a later step than they begin are not awaited by those who did not see them begin."""
    first = case_of(strategy, SETTINGS.get(strategy), grid=False, steps=3)
    ran = run_threads(other(first, root=tmp_path / "one"))
    assert ran.store is not None
    more = case_of(strategy, SETTINGS.get(strategy), grid=False, steps=8)
    again = run_threads(other(more, root=tmp_path / "two", resume=ran.store.root))
    assert len(again.losses) == 5
    assert all(np.isfinite(loss) for loss in again.losses)


ENDS: dict[str, dict[str, Any]] = {
    "the last step": {},
    "the last step, at_end off": {"checkpoint": {"every": 3, "at_end": False}},
    "stopped after a step": {"stop_after": 3, "steps": 5},
    "stopped in an evaluation": {"stop_after": 4, "steps": 5, "evaluation": True},
}


@pytest.mark.parametrize("changes", ENDS.values(), ids=ENDS)
def test_the_last_checkpoint_holds_what_the_replicas_agree_on(changes: dict[str, Any], tmp_path: Path) -> None:
    """Also where it is one of those of every so many steps: local_sgd agrees in every second, and the run ends in between."""
    asked = {key: value for key, value in changes.items() if key in ("stop_after", "evaluation")}
    job = {"checkpoint": {"every": 3}, "steps": 3} | {key: value for key, value in changes.items() if key not in asked}
    case = case_of("local_sgd", {"sync_every": 2}, **job)
    if "evaluation" in asked:
        case = other(case, job=case.job.model_copy(update={"evaluate": EvaluateSpec(every=3, batches=2)}))
    ran = run_threads(other(case, root=tmp_path / "run", **asked))
    assert newest(ran).manifest.step == len(ran.losses) == 3
    assert_agreed("local_sgd", ran.held["a"], ran.held["c"])
    kept = newest(ran).read(newest(ran).manifest.states)
    assert differing(ran.states, {name: value for name, value in kept.items() if name in ran.states}) == []


def test_a_run_that_is_handed_over_keeps_its_replicas_apart(tmp_path: Path) -> None:
    """Others go on from its checkpoint as if nothing had been: nobody agrees on anything before the end."""
    case = case_of("local_sgd", {"sync_every": 4}, steps=5)
    handed = run_threads(other(case, root=tmp_path / "run", leave_after=3))
    assert handed.kept == [3]
    again = run_threads(other(case, root=tmp_path / "again", resume=tmp_path / "run"))
    assert differing(run_threads(case).states, again.states) == []


def test_what_was_sent_is_what_the_sender_counts() -> None:
    """Also where parameters change before a slow link has taken the frame, and for codecs that look at shapes."""
    ran = run_threads(case_of("local_sgd", {"sync_every": 1, "codec": "int8"}, grid=False, steps=4))
    assert differing(ran.held["a"], ran.held["c"]) == []
    low = run_threads(case_of("ssgd", {"codec": "lowrank"}, grid=False, steps=3))
    assert differing(low.held["a"], low.held["c"]) == []


def patient(strategy: str, settings: Mapping[str, Any], **more: Any) -> Case:
    return case_of(strategy, grid=False, sync={"strategy": strategy, "settings": dict(settings), **more})


def test_patience_changes_nothing_where_all_come_in_time() -> None:
    hasty = patient("local_sgd", {"sync_every": 2}, patience=60.0)
    one, two = run_threads(hasty), run_threads(case_of("local_sgd", {"sync_every": 2}, grid=False))
    assert differing(one.states, two.states) == []
    assert one.notes == []


def test_who_was_missing_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Averager.wait

    def without_c(self: Averager, stage: int, tag: str) -> Outcome:
        return replace(wait(self, stage, tag), missing=frozenset({1} if tag == "1" else ()))

    monkeypatch.setattr(Averager, "wait", without_c)
    ran = run_threads(patient("local_sgd", {"sync_every": 2}, patience=60.0))
    assert ran.notes == ["step 1: an exchange of stage 0 ended without c; the others' weights grew"]


REFUSED: dict[str, tuple[Case, str]] = {
    "clip": (
        case_of("free_sets", {"sync_every": 2}, optimizer=SGD | {"clip_norm": 1.0}),
        "updates a layer before all gradients are known",
    ),
    "clip scalars": (
        case_of("seed_and_scalar", optimizer=SGD | {"clip_norm": 1.0}),
        "clip_norm = 1: seed_and_scalar estimates gradients from one number of each replica, so there is no norm to clip by",
    ),
    "codec between stages": (
        case_of("seed_and_scalar", codec={"name": "int8"}),
        "codec.name = 'int8': seed_and_scalar compares two losses that lie close together, and a codec between stages would blur",
    ),
    "patience for scalars": (patient("seed_and_scalar", {}, patience=2.0), "each decides alone; set patience to 0"),
    "setting": (case_of("local_sgd", {"often": 2}), "has no setting 'often'"),
    "patience": (
        patient("gossip", {}, patience=2.0),
        "every member must decide alike who counts, and with this strategy or codec each decides alone",
    ),
    "quorum": (patient("ssgd", {}, patience=2.0, quorum=3), "sync.quorum = 3 in groups of 2: set it to at most 2"),
    "grid": (
        other(case_of("ssgd"), replicas={**GRID, 1: [("b", range(1)), ("d", range(1, 4))]}),
        "replica k of every stage must compute the same micro-batches",
    ),
    "device": (
        other(case_of("ssgd"), replicas={**GRID, 1: [("c", range(2)), ("d", range(2, 4))]}, devices=("a", "c")),
        "a device must have one k",
    ),
}


@pytest.mark.parametrize(("case", "text"), REFUSED.values(), ids=REFUSED)
def test_what_a_strategy_can_not_work_with(case: Case, text: str) -> None:
    graphs = case.graphs()
    with pytest.raises(PlanError, match=text):
        hand_plan(case, graphs[max(graphs)])


def test_plans_with_a_strategy_are_read_back() -> None:
    case = case_of("free_sets", {"sync_every": 2}, grid=False)
    graphs = case.graphs()
    plan = hand_plan(case, graphs[max(graphs)])
    assert plan.sync is not None
    sets = tuple((index,) for index in range(len(plan.sync.layers[0])))
    given = replace(plan, sync=replace(plan.sync, settings=(("sets", sets), ("sync_every", len(sets)))))
    assert Plan.from_json(given.to_json()) == given


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [("diloco", {"sync_every": 2}), ("diloco", {"sync_every": 2, "codec": "int8"}), ("co2", {"sync_every": 2})],
    ids=["diloco", "diloco in 8 bits", "co2"],
)
def test_divergence_is_told_where_pseudo_gradients_are_averaged(strategy: str, settings: dict[str, Any]) -> None:
    """As far as parameters were apart: no farther than those of local SGD, whose first round is the same, and farther than 0."""
    far = [report.divergence for report in run_threads(case_of(strategy, settings, grid=False, steps=4)).reports]
    local = [report.divergence for report in run_threads(case_of("local_sgd", {"sync_every": 2}, grid=False, steps=4)).reports]
    assert local[1] is not None
    first = next(value for value in far if value is not None)
    assert first == pytest.approx(local[1], rel=0.1)


def test_the_trace_says_which_layers_replicas_exchange_in_which_step() -> None:
    ran = run_threads(case_of("contiguous", {"sync_every": 2}, grid=False, steps=2))
    assert ran.plan.sync is not None
    count = len(ran.plan.sync.layers[0])
    spans = [span for span in ran.exchanges if span.name != f"layers 0-{count - 1}"]
    assert {span.step for span in spans} == {0, 1}
    names = {span.name for span in spans}
    assert all(name.startswith("layers ") for name in names)
    seen = sorted(int(part) for name in names for part in name.removeprefix("layers ").split("-"))
    assert seen[0] == 0
    assert seen[-1] == count - 1
    assert all(span.nbytes > 0 and span.seconds >= 0 for span in spans)
