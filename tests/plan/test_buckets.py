"""Buckets of the exact exchange: every gradient once, balanced, and the same in numbers as in uses."""

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.graph.cut import cut
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.plan import Replica
from farflung.plan.buckets import BUCKET_BYTES, buckets_of, parts_of, served_bytes, trained_uses
from tests.support.plans.chains import chain

WIDTHS = st.lists(st.sampled_from([16, 64, 512, 1100, 1500]), min_size=2, max_size=7)


@settings(deadline=None, max_examples=40)
@given(widths=WIDTHS, count=st.integers(1, 4), frozen=st.booleans(), at=st.integers(0, 6))
def test_each_gradient_is_in_one_bucket_and_numbers_agree(widths, count, frozen, at):
    graph = chain(tuple(widths))
    optimizer = OptimizerSpec(groups=(GroupSpec(match="fc1", frozen=True),) if frozen else ())
    middle = min(at, len(graph.ops) - 2) + 1
    devices = [f"d{i}" for i in range(count)]
    for piece in cut(graph, [(0, middle), (middle, len(graph.ops))]):
        buckets = buckets_of(graph, piece, optimizer, devices)
        assert [use for bucket in buckets for use in bucket.uses] == trained_uses(graph, piece, optimizer)
        served = dict.fromkeys(devices, 0)
        for bucket in buckets:
            served[bucket.server] += bucket.nbytes
            assert sum(spec.nbytes for spec in bucket.specs[:-1]) < BUCKET_BYTES
        assert served_bytes(graph, piece, optimizer, len(devices)) == list(served.values())
        largest = max((bucket.nbytes for bucket in buckets), default=0)
        assert max(served.values()) - min(served.values()) <= largest


def test_the_first_replica_sends_one_part_and_others_one_for_each_virtual_replica():
    replicas = [Replica(device="a", first=0, end=4), Replica(device="b", first=4, end=6), Replica(device="c", first=6, end=8)]
    assert parts_of(replicas, (2, 4, 6, 8)) == [(4,), (6,), (8,)]
    assert parts_of(replicas, tuple(range(1, 9))) == [(4,), (5, 6), (7, 8)]
