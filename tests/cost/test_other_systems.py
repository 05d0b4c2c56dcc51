"""The cost models of Megatron-LM, ZeRO-3 and DeepSpeed's pipelines, by hand on networks of equal links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farflung.cluster import Device, Topology
from farflung.cost.other_systems import TransformerWork, megatron_step, zero1_step, zero3_step
from farflung.units import Bytes, FlopsPerSecond

WORK = TransformerWork(
    layers=4,
    heads=4,
    micro_batches=4,
    forward=100.0,
    backward=200.0,
    activations=8.0,
    saved=40.0,
    parameters=64.0,
    states=256.0,
)


def network(count: int, alpha: float, beta: float, memory: float = 1e9) -> Topology:
    devices = [Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(10.0), speed_factor=1.0) for i in range(count)]
    off = 1.0 - np.eye(count)
    return Topology.from_matrices(alpha * off, np.where(off > 0, beta, np.inf), devices)


def test_one_device_computes_all_micro_batches() -> None:
    found = megatron_step(WORK, network(1, 0.0, 1.0))
    assert found is not None
    assert (found.seconds, found.degrees) == (pytest.approx(4 * 30.0), "tensor 1, pipeline 1, data 1")
    found = zero3_step(WORK, network(1, 0.0, 1.0))
    assert found is not None
    assert found.seconds == pytest.approx(4 * 30.0)


def test_tensor_parallel_groups_sum_four_times_a_layer() -> None:
    """A model of one layer for one sample leaves nothing else to divide; a sum on two devices sends its bytes once each way."""
    alone = replace(WORK, layers=1, micro_batches=1)
    found = megatron_step(alone, network(2, 0.25, 4.0))
    assert found is not None
    assert found.degrees == "tensor 2, pipeline 1, data 1"
    assert found.seconds == pytest.approx(15.0 + 4 * 2 * (0.25 + 8.0 / 2 / 4.0))


def test_far_devices_are_not_tensor_parallel() -> None:
    near, far = (megatron_step(WORK, network(4, alpha, 1e9)) for alpha in (0.0, 100.0))
    assert near is not None
    assert far is not None
    assert "tensor 1" in far.degrees
    assert far.seconds > near.seconds >= 4 * 30.0 / 4


def test_zero3_passes_all_parameters_three_times_over_the_slowest_link() -> None:
    found = zero3_step(WORK, network(4, 1.0, 2.0))
    assert found is not None
    ring = 3 * (1.0 + 64.0 / 4 / 2.0) + 3 * 3 * 1.0  # the bytes once, and the latency of each layer
    assert found.seconds == pytest.approx(max(30.0, 3 * ring))
    assert found.degrees == "data 4, 1 x 1 micro-batches"


def test_memory_asks_for_recomputation_and_more_passes_and_ends() -> None:
    work = replace(WORK, micro_batches=16, activations=1.0)
    memories = (1e9, 160.0, 130.0, 100.0)
    roomy, tight, tighter, none = (zero3_step(work, network(4, 0.0, 1e9, memory)) for memory in memories)
    assert roomy is not None
    assert tight is not None
    assert tighter is not None
    assert (roomy.degrees, roomy.seconds) == ("data 4, 1 x 4 micro-batches", pytest.approx(4 * 30.0))
    assert (tight.degrees, tight.seconds) == ("data 4, 1 x 4 micro-batches", pytest.approx(4 * 40.0)), "the forward twice"
    assert (tighter.degrees, tighter.seconds) == ("data 4, 2 x 2 micro-batches", pytest.approx(4 * 40.0))
    assert none is None
    assert megatron_step(work, network(4, 0.0, 1e9, 60.0)) is None


def test_no_degree_is_above_the_largest_one() -> None:
    free, bound = (megatron_step(WORK, network(4, 0.0, 1e9), most) for most in (None, 2))
    assert free is not None
    assert bound is not None
    assert free.degrees == "tensor 1, pipeline 1, data 4"
    assert all(int(degree.split()[1]) <= 2 for degree in bound.degrees.split(", "))
    assert bound.seconds > free.seconds
    assert megatron_step(WORK, network(16, 0.0, 1e9), 2) is None, "16 devices need a degree above 2"


def test_pipelines_with_zero_1_take_a_step_of_megatron_and_less_memory() -> None:
    """Four copies of the states take 256 bytes each. With a quarter of the optimizer's 128 bytes, they take 160."""
    roomy = network(4, 0.0, 1e9)
    found, megatron = zero1_step(WORK, roomy), megatron_step(WORK, roomy)
    assert found is not None
    assert megatron is not None
    assert (found.seconds, found.degrees) == (megatron.seconds, "tensor 1, pipeline 1, data 4")
    tight = network(4, 0.0, 1e9, 200.0)
    fits, divided = zero1_step(WORK, tight), megatron_step(WORK, tight)
    assert fits is not None
    assert fits.degrees == "tensor 1, pipeline 1, data 4"
    assert divided is None or divided.degrees != fits.degrees
