"""What ``auto`` holds for a lower bound of a step is one, and interchangeable devices cost the same."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.job.spec import JobSpec
from farflung.planners.auto import Auto, AutoSettings
from farflung.planners.auto.bounds import Bounds, Copy
from farflung.planners.auto.layout import Context, Layout
from farflung.planners.auto.quick import Quick
from farflung.planners.finish import Problem
from farflung.schedules import Exchange, PipelineTimes, TimedEdge, Transfer, part_of, time_schedule
from farflung.units import Bytes, FlopsPerSecond
from tests.support.plans.chains import chain, network

SECONDS = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 3.0])
SCHEDULES = st.sampled_from(["1f1b", "gpipe", "eager-2", "eager-3", "zb-h1", "interleaved-2"])
GRAPH = chain((32, 64, 16, 128, 32, 64, 16))


@st.composite
def steps(draw):
    """A chain of stages with copies, their times, and the parts of the schedule that they have."""
    name, sizes = draw(SCHEDULES), draw(st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=1, max_size=8))
    folded = name == "interleaved-2"
    stages = 2 * draw(st.integers(1, 3)) if folded else draw(st.integers(1, 5))
    copies, device, share = [], [], []
    for stage in range(stages):
        cuts = draw(st.sets(st.integers(1, len(sizes)), max_size=0 if folded else 2)) - {len(sizes)}
        ends = [0, *sorted(cuts), len(sizes)]
        for first, end in pairwise(ends):
            part = part_of(name, stages, len(sizes), stage, (first, end))
            copies.append((stage, part))
            device.append(stage % (stages // 2) if folded else len(device))
            share.append(range(first, end))
    count = range(len(copies))
    backward = [draw(SECONDS) for _ in count]
    back = [draw(st.booleans()) for _ in range(stages)]
    edges = [
        TimedEdge(
            source=a,
            target=b,
            forward=draw(_transfer(device, a, b)),
            backward=draw(_transfer(device, b, a)) if back[copies[b][0]] else None,
        )
        for a in count
        for b in count
        if copies[b][0] == copies[a][0] + 1 and set(share[a]) & set(share[b])
    ]
    pairs = draw(st.lists(st.tuples(st.sampled_from(count), st.sampled_from(count), st.integers(0, 2)), max_size=6))
    exchanges = [
        _in_parts(Exchange(source=a, target=b, transfer=draw(_transfer(device, a, b)), round=turn), share, draw)
        for a, b, turn in pairs
    ]
    times = PipelineTimes(
        forward=[draw(SECONDS) for _ in count],
        backward=backward,
        device=device,
        edges=edges,
        exchanges=exchanges,
        update=[draw(SECONDS) for _ in count],
        weight=[seconds / 2 for seconds in backward],
        scale=sizes,
        share=share,
    )
    return times, copies


def _transfer(device, source, target):
    same = device[source] == device[target]
    return st.just(Transfer(0.0, 0.0)) if same else st.builds(Transfer, SECONDS, SECONDS)


def _in_parts(exchange, share, draw):
    """An exchange of the first round may leave in parts, the last after all that its source computes."""
    own = share[exchange.source]
    if exchange.round or draw(st.booleans()):
        return exchange
    return replace(exchange, after=(*sorted(draw(st.sets(st.sampled_from(own))) - {own[-1]}), own[-1]))


@settings(max_examples=60)
@given(step=steps(), part=st.sampled_from([0.5, 0.9, 1.0]))
def test_no_step_is_shorter_than_its_bound(step, part):
    times, copies = step
    orders = [part.prepared for _, part in copies]
    try:
        seconds = time_schedule(orders, times).seconds
    except PlanError:
        assume(False)
    bounds = Bounds(times, [Copy(stage, part.in_flight, part.prepared.splits) for stage, part in copies])
    assert bounds.seconds() <= seconds
    # a clock that knows what follows stops early, but never below the step
    assert time_schedule(orders, times, limit=seconds, after=bounds.after()).seconds == seconds
    if seconds:
        early = time_schedule(orders, times, limit=part * seconds * (1 - 1e-6), after=bounds.after()).seconds
        assert part * seconds * (1 - 1e-6) < early <= seconds * (1 + 1e-6)


def test_the_bound_counts_full_ways_turns_and_exchanges():
    part = part_of("1f1b", 2, 4, 0, (0, 4)), part_of("1f1b", 2, 4, 1, (0, 4))
    copies = [Copy(stage, own.in_flight, own.prepared.splits) for stage, own in enumerate(part)]
    far = TimedEdge(source=0, target=1, forward=Transfer(5.0, 1.0), backward=Transfer(5.0, 1.0))
    tied = Exchange(source=0, target=1, transfer=Transfer(0.0, 7.0), round=2)
    times = PipelineTimes(
        forward=[1.0, 1.0],
        backward=[1.0, 1.0],
        device=[0, 1],
        edges=[far],
        exchanges=[tied],
        update=[0.0, 2.0],
        weight=[0.0, 0.0],
        scale=[1.0] * 4,
        share=[range(4), range(4)],
    )
    # two are in flight, so two turns of 1 + 6 + 2 + 6 + 1, one more backward, the exchange and the update behind it
    assert abs(Bounds(times, copies).seconds() - (2 * 16 + 1 + 7 + 2)) < 1e-6
    assert time_schedule([own.prepared for own in part], times).seconds >= 42


def twins(seed, count):
    """Devices of two kinds in two regions."""
    random = np.random.default_rng(seed)
    region = [int(random.integers(2)) for _ in range(count)]
    devices = [
        Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(float(random.choice([1e8, 5e8]))), region=f"r{region[i]}")
        for i in range(count)
    ]
    near, far = 1e8, float(random.choice([1e5, 1e6]))
    beta = np.array([[near if a == b else far for a in region] for b in region])
    return Topology.from_matrices(np.full((count, count), 1e-3), beta, devices)


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 10**6), count=st.integers(2, 7))
def test_layouts_of_interchangeable_devices_have_one_price(data, seed, count):
    topology = twins(seed, count)
    job = JobSpec(micro_batch_sizes=(8,) * 4)
    context = Context(Problem.of(GRAPH, topology, job), AutoSettings())
    order, stages = data.draw(st.permutations(range(count))), data.draw(st.integers(1, min(count, 4)))
    wide = data.draw(st.integers(1, min(4, count // stages)))
    groups = tuple(tuple(order[stage * wide : stage * wide + wide]) for stage in range(stages))
    layout = context.divide(Layout(groups, (0, len(GRAPH.ops)), "1f1b", job.micro_batch_sizes))
    assume(layout is not None)
    mapping = list(range(count))  # each device becomes one like it
    for number in set(context.like((tuple(range(count)),))[0][0]):
        same = [i for i in range(count) if context.like(((i,),)) == (((number,),), ())]
        for i, other in zip(same, data.draw(st.permutations(same)), strict=True):
            mapping[i] = other
    other = replace(layout, groups=tuple(tuple(mapping[i] for i in group) for group in groups))
    assert context.like(other.groups) == context.like(groups)
    fresh = [Quick(Context(context.problem, AutoSettings())).seconds(each) for each in (layout, other)]
    assert abs(fresh[0] - fresh[1]) <= 1e-12 * fresh[0]
    quick = Quick(context)
    assert quick.seconds(layout) == quick.seconds(other)


def test_devices_that_differ_in_anything_are_told_apart():
    base = twins(1, 4).devices[0]
    changed = [base, replace(base, name="b", memory=Bytes(2e9)), replace(base, name="c", speed=FlopsPerSecond(3e8))]
    topology = Topology.from_matrices(np.full((3, 3), 1e-3), np.full((3, 3), 1e8), changed)
    context = Context(Problem.of(GRAPH, topology, JobSpec()), AutoSettings())
    assert len({context.like(((i,),)) for i in range(3)}) == 3
    apart = Context(Problem.of(GRAPH, network(3, 5), JobSpec()), AutoSettings())
    assert len({apart.like(((i,),)) for i in range(5)}) == 5
    assert apart.like(((0,), (1,), (0,))) != apart.like(((0,), (1,), (2,)))


def test_a_price_that_is_only_a_bound_is_made_exact_when_asked_for():
    topology = network(5, 4)
    job = JobSpec(micro_batch_sizes=(8,) * 4)
    context = Context(Problem.of(GRAPH, topology, job), AutoSettings())
    layout = context.divide(Layout(((0,), (1,), (2,)), (0, len(GRAPH.ops)), "1f1b", job.micro_batch_sizes))
    exact = Quick(context).seconds(layout)
    quick = Quick(context)
    bound = quick.seconds(layout, exact / 10)
    assert exact / 10 < bound <= exact * (1 + 1e-9)
    assert quick.seconds(layout, exact) == exact
    assert quick.seconds(layout, exact / 10) == exact


def test_layouts_of_interchangeable_devices_are_judged_once():
    topology = twins(2, 6)
    job = JobSpec(micro_batch_sizes=(8,) * 4)
    auto = Auto(AutoSettings(evaluations=40, members=("op_fence",)))
    auto.plan(GRAPH, topology, job=job)
    context = Context(Problem.of(GRAPH, topology, job), AutoSettings())
    own = [context.layout_of(trial.plan) for trial in auto.trials if trial.planner == "auto"]
    assert len(own) > 5
    assert len({(context.like(each.groups), each.cuts, each.schedule, each.sizes) for each in own}) == len(own)
