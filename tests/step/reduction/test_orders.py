"""Sums in any order: by servers, a ring or a tree all members end with the same bits, those of the exact run to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farflung.codecs import get_codec
from farflung.engines.base import Array
from farflung.errors import InputError, PlanError, WireError
from farflung.graph.cut import cut
from farflung.graph.ir import TensorSpec, Use
from farflung.job.load import make_job
from farflung.messages.arrays import pack_arrays
from farflung.messages.data import PartialSum, Total
from farflung.messages.router import PeerRouter
from farflung.plan.check import check_plan, check_replicas
from farflung.plan.model import Plan
from farflung.step.inbox import Inbox
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.reduction.gradient_sums import GradientSums
from farflung.step.reduction.orders import JobOrder, Role, RouteOrder, StageUses
from farflung.step.reduction.pieces import GradientPiece
from farflung.step.transfer.outbox import OutgoingMessage
from farflung.sync.reductions import Reduction, runs_of
from tests.support.steps.executor_threads import Case, Ran, differing, other, run_threads
from tests.support.steps.replica_cases import SIZES, case_of, small_plan


def by(kind: str, members: int) -> Reduction:
    """A ring against the order of ranks; a tree whose root is neither the first nor the last and that branches."""
    if kind == "ring":
        return Reduction(by="ring", toward=tuple((member - 1) % members for member in range(members)))
    root = members // 2
    toward = [root if abs(member - root) == 1 else member - 1 if member > root else member + 1 for member in range(members)]
    toward[root] = -1
    return Reduction(by="tree", toward=tuple(toward), turns=3) if kind == "tree" else Reduction()


class Group:
    """Members of one stage whose links deliver at once; ``held``: for each its gradients by use."""

    def __init__(self, reduction: Reduction, held: Sequence[Mapping[Use, Array]], sizes: Sequence[int]) -> None:
        members, names = len(held), [f"w{rank}" for rank in range(len(held))]
        self.uses = [Use(state=f"p{index}", op=f"op{index}") for index in range(len(sizes))]
        specs = tuple(TensorSpec(dtype="float32", shape=(size,)) for size in sizes)
        cuts = runs_of(sizes, reduction.cuts(members))
        self.members: list[GradientExchange] = []
        self.boxes = [Inbox() for _ in names]
        self.routers = [PeerRouter() for _ in names]
        for rank, (name, box) in enumerate(zip(names, self.boxes, strict=True)):
            order = RouteOrder(
                device=name,
                stages={0: StageUses(uses=tuple(self.uses), specs=specs)},
                pieces={0: tuple(self._piece(runs) for runs in cuts)},
                routes={0: tuple(reduction.route(number, members) for number in range(len(cuts)))},
                devices={0: tuple(names)},
                last_ends={0: rank + 1},
            )
            self.members.append(GradientExchange(order, GradientSums("run", order, box, self._links(name))))
            self.members[-1].register(self.routers[rank])
        self.held, self.found = held, [dict[Use, Array]() for _ in names]

    def _piece(self, runs: tuple[tuple[int, int, int], ...]) -> GradientPiece:
        return GradientPiece(
            runs=runs,
            specs=tuple(TensorSpec(dtype="float32", shape=(stop - start,)) for _, start, stop in runs),
            states=tuple(self.uses[index].state for index, _, _ in runs),
        )

    def _links(self, name: str) -> Any:
        def post(device: str, parcel: OutgoingMessage) -> None:
            assert not parcel.waits
            message = parcel.make()
            assert message is not None
            self.routers[int(device[1:])].dispatch(name, message)

        return SimpleNamespace(post=post)

    def step(self, step: int) -> None:
        def one(rank: int) -> None:
            runner: Any = SimpleNamespace(take_gradients=lambda: self.held[rank], put_gradients=self.found[rank].update)
            self.members[rank].after_backward(step, 0, rank, runner)
            self.members[rank].finish(step, {0: runner})

        with ThreadPoolExecutor(len(self.members)) as threads:
            for done in [threads.submit(one, rank) for rank in reversed(range(len(self.members)))]:
                done.result(timeout=60)


@pytest.mark.parametrize("kind", ["server", "ring", "tree"])
@pytest.mark.parametrize("members", range(2, 8))
def test_all_members_end_with_the_same_sum(kind: str, members: int) -> None:
    """Sizes are unequal; a use without a gradient at some members, or at all, is summed over the others."""
    sizes, random = [7, 1, 400, 0, 33, 5], np.random.default_rng(members)
    rows = [[random.standard_normal(size).astype(np.float32) for size in sizes] for _ in range(members)]
    names = [Use(state=f"p{index}", op=f"op{index}") for index in range(len(sizes))]

    def held(rank: int) -> dict[Use, Array]:
        return {
            use: row.copy() for i, (use, row) in enumerate(zip(names, rows[rank], strict=True)) if i != 5 and (i, rank) != (4, 0)
        }

    def ran() -> Group:
        group = Group(by(kind, members), [held(rank) for rank in range(members)], sizes)
        group.step(3)
        return group

    one, two = ran(), ran()
    for index in (0, 1, 2, 4):
        total = sum(np.float64(rows[rank][index]) for rank in range(members) if (index, rank) != (4, 0))
        np.testing.assert_allclose(one.found[0][names[index]], total, rtol=1e-5, atol=1e-6)
    assert names[5] not in one.found[0]
    for group in (one, two):
        for found in group.found:
            assert {use: array.tobytes() for use, array in found.items() if array.size} == {
                use: array.tobytes() for use, array in one.found[0].items() if array.size
            }
    assert all(len(box) == 0 for box in one.boxes)


def test_what_belongs_to_nobody_is_refused() -> None:
    group = Group(by("tree", 3), [{}, {}, {}], [4])

    def part(**head: int) -> PartialSum:
        full = {"step": 0, "stage": 0, "bucket": 0, "part": 0} | head
        return pack_arrays(partial(PartialSum, run="run", **full), [np.zeros(2, np.float32)], None)

    leaf, root, _ = group.routers
    with pytest.raises(WireError, match="stage 0 has 3 pieces to sum here, number 9 of w0 is none of them"):
        root.dispatch("w0", part(bucket=9))
    with pytest.raises(WireError, match="number 0 of w7 is none of them"):
        root.dispatch("w7", part())
    with pytest.raises(WireError, match="w2 has no part 2 of piece 0 of stage 0 to send here"):
        leaf.dispatch("w2", part(part=2))
    with pytest.raises(WireError, match="w0 has no part 1 of piece 0 of stage 0 to send here"):
        root.dispatch("w0", part(part=1))
    with pytest.raises(WireError, match="w0 has no total of piece 0 of stage 0 to send here"):
        root.dispatch("w0", Total(run="run", step=0, stage=0, bucket=0, part=0, arrays=()))
    with pytest.raises(WireError, match=r"'p0' is float32\[1\], float32\[2\] came"):
        root.dispatch("w0", part())
    head = partial(PartialSum, run="run", step=0, stage=0, bucket=0, part=0)
    with pytest.raises(WireError, match=r"the sums in a '.*' are compressed: they never are"):
        root.dispatch("w0", pack_arrays(head, [np.zeros(1, np.float32)], get_codec("int8")))


def any_order(case: Case, kind: str) -> Case:
    job = case.job.model_copy(update={"sync": case.job.sync.model_copy(update={"order": "any"})})
    counts = {stage: len(held) for stage, held in case.replicas.items() if len(held) > 1}
    return other(case, job=job, adds={stage: by(kind, count) for stage, count in counts.items()})


def close(one: Ran, two: Ran) -> None:
    assert one.states.keys() == two.states.keys()
    for name, value in one.states.items():
        np.testing.assert_allclose(two.states[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["server", "ring", "tree"])
@pytest.mark.parametrize("layout", ["2 x 2", "uneven", "3 x 1", "one device in both"])
def test_runs_equal_exact_ones_to_rounding(layout: str, kind: str) -> None:
    """Tied weights, dropout, AdamW, a device in two stages, uneven shares; replicas end with the same bits."""
    case = case_of(layout, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.5})
    exact, free = run_threads(case), run_threads(any_order(case, kind))
    close(exact, free)
    np.testing.assert_allclose(exact.losses, free.losses, rtol=1e-5)
    assert [report.grad_norm for report in free.reports] == pytest.approx(
        [report.grad_norm for report in exact.reports], rel=1e-4
    )
    for one, two in ((one, two) for one in free.held.values() for two in free.held.values()):
        both = one.keys() & two.keys()
        assert differing({name: one[name] for name in both}, {name: two[name] for name in both}) == []


def test_codecs_between_stages_combine_with_any_order() -> None:
    case = case_of("2 x 2", codec={"name": "int8"})
    ran = run_threads(any_order(case, "ring"))
    assert all(np.isfinite(loss) for loss in ran.losses)
    assert differing(ran.held["a"], ran.held["c"]) == []


def test_a_skipped_step_leaves_sums_in_any_order_equal() -> None:
    case = other(any_order(case_of("3 x 1", on_nan="skip", steps=4), "ring"), spoilt={1: float("inf")})
    ran = run_threads(case)
    assert [report.skipped for report in ran.reports] == [False, True, False, False]
    assert differing(ran.held["a"], ran.held["c"]) == []


def test_plans_in_any_order_are_read_back_and_checked() -> None:
    plan, graph, job = small_plan(any_order(case_of("3 x 1"), "ring"))
    assert Plan.from_json(plan.to_json()) == plan
    check_replicas(plan, cut(graph, plan.bounds), job)
    exact = small_plan(case_of("3 x 1"))[2]
    with pytest.raises(
        PlanError, match=r"stage 0: its replicas sum by ring, and the job has sync.strategy = 'exact' with order = 'job'"
    ):
        check_plan(plan, graph, None, exact)
    wrong = small_plan(other(any_order(case_of("3 x 1"), "ring"), adds={0: Reduction(by="ring", toward=(1, 0, 2))}))[0]
    with pytest.raises(
        PlanError, match=r"stage 0: a sum by ring of 3 members toward \[1, 0, 2\]: this is no ring of all; plan again"
    ):
        check_plan(wrong, graph, None, job)
    alone = small_plan(other(any_order(case_of("3 x 1"), "ring"), adds={0: by("ring", 3), 1: Reduction()}))[0]
    with pytest.raises(PlanError, match="stage 1 sums by server and has no replicas; remove adds from it"):
        check_plan(alone, graph, None, job)
    half = small_plan(other(any_order(case_of("2 x 2"), "ring"), adds={0: by("ring", 2)}))
    with pytest.raises(PlanError, match="stage 1 sums in the job's order and others in any"):
        check_plan(half[0], half[1], None, half[2])


REFUSED = {
    "strategy": (
        {"sync": {"order": "any", "strategy": "local_sgd"}, "plan": {"replicas": 2}},
        "sync.order = 'any' with strategy = 'local_sgd': it is for the sums of strategy = 'exact'",
    ),
    "codec": (
        {"sync": {"order": "any", "settings": {"codec": "int8"}}},
        "sync.settings.codec = 'int8' with order = 'any': sums are passed on and added to, so a codec would blur them once more",
    ),
    "virtual": (
        {"sync": {"order": "any"}, "virtual_replicas": 2},
        "virtual_replicas = 2 orders sums, and sync.order = 'any' leaves their order to the plan",
    ),
    "word": ({"sync": {"order": "some"}}, "sync.order = 'some': must be 'job' or 'any'"),
}


@pytest.mark.parametrize(("changes", "text"), REFUSED.values(), ids=REFUSED)
def test_what_any_order_does_not_combine_with(changes: Mapping[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_job({"steps": 1, "micro_batch_sizes": SIZES} | dict(changes))


def in_order() -> JobOrder:
    """Worker "a" serves bucket 0, "b" bucket 1; "b" has two virtual replicas."""
    spec = TensorSpec(dtype="float32", shape=(2,))
    piece = GradientPiece(runs=((0, 0, 2),), specs=(spec,), states=("p",))
    return JobOrder(
        device="a",
        stages={0: StageUses(uses=(Use(state="p", op="op"),), specs=(spec,))},
        pieces={0: (piece, piece)},
        servers={0: ("a", "b")},
        devices={0: ("a", "b")},
        parts={0: (("a", 2), ("b", 3), ("b", 4))},
        virtual_ends=frozenset({2, 3, 4}),
        last_ends={0: 2},
        micro_batches=4,
    )


@pytest.mark.parametrize(
    ("message", "peer", "bucket", "part", "text"),
    [
        (PartialSum, "b", 2, 3, "stage 0 has 2 buckets to exchange here, not number 2"),
        (PartialSum, "b", 1, 3, "b has no part 3 of bucket 1 of stage 0 to send here"),
        (PartialSum, "b", 0, 2, "b has no part 2 of bucket 0 of stage 0 to send here"),
        (Total, "b", 0, 0, "b has no total of bucket 0 of stage 0 to send here"),
    ],
)
def test_sums_that_belong_to_no_bucket_here_are_refused(
    message: type[PartialSum | Total], peer: str, bucket: int, part: int, text: str
) -> None:
    router, order = PeerRouter(), in_order()
    GradientSums("run", order, Inbox(), None).register(router)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=text):
        router.dispatch(peer, message(run="run", step=0, stage=0, bucket=bucket, part=part, arrays=()))


def test_the_server_adds_the_parts_in_the_order_of_the_job() -> None:
    order = in_order()
    assert order.role(0, 0).adds == (2, 3, 4)
    assert order.role(0, 1) == Role(collector="b", adds=(), up=None, down=())
    order.check_part("b", PartialSum(run="run", step=0, stage=0, bucket=0, part=4, arrays=()))
    order.check_total("b", Total(run="run", step=0, stage=0, bucket=1, part=0, arrays=()))
