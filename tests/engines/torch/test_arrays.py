"""Arrays at the engine's border: values and strides, both ways."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.engines.torch.arrays import TORCH_DTYPES, check_array, from_array, to_array
from farflung.errors import GraphError
from farflung.graph.ir import DTYPES, TensorSpec

CPU = torch.device("cpu")


def test_closed_table_is_the_graphs() -> None:
    assert TORCH_DTYPES.keys() == DTYPES.keys()


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_round_trip_keeps_values_and_strides(shape: list[int], dtype: str, seed: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(TORCH_DTYPES[dtype]).permute(order)
    array = to_array(tensor)
    assert array.dtype.name == dtype
    array.flags.writeable = False
    back = from_array(array, CPU)
    assert torch.equal(back, tensor)
    assert back.dtype is tensor.dtype
    if 0 not in shape and 1 not in shape:
        assert back.stride() == tensor.stride()


def test_slices_and_broadcast_axes_keep_their_strides() -> None:
    base = torch.arange(60.0).reshape(4, 15)
    part = base[:, 5:10]
    assert from_array(to_array(part), CPU).stride() == (15, 1)
    wide = torch.arange(3.0)[:, None].expand(3, 4)
    back = from_array(to_array(wide), CPU)
    assert back.stride() == (1, 0)
    assert torch.equal(back, wide)
    assert np.array_equal(to_array(wide, copy=True), wide.numpy())
    backwards = np.arange(6.0)[::-1]
    assert torch.equal(from_array(backwards, CPU), torch.arange(5.0, -1.0, -1.0, dtype=torch.float64))


def test_copies_and_shared_memory() -> None:
    tensor = torch.ones(3)
    shared, copied = to_array(tensor), to_array(tensor, copy=True)
    received = from_array(shared, CPU)
    tensor += 1
    assert shared[0] == 2
    assert copied[0] == 1
    assert received[0] == 1


def test_bfloat16_is_exact() -> None:
    tensor = torch.randn(5, 3).bfloat16().t()
    array = to_array(tensor)
    assert array.dtype == ml_dtypes.bfloat16
    assert torch.equal(from_array(array, CPU), tensor)


def test_refusals() -> None:
    spec = TensorSpec(dtype="float32", shape=(2, 3))
    with pytest.raises(GraphError, match=r"state 'w' is declared float32\[2, 3\] but the given array is float64\[2, 3\]"):
        check_array("state 'w'", np.zeros((2, 3)), spec)
    with pytest.raises(GraphError, match="element type 'uint64' is not known"):
        from_array(np.zeros(2, dtype=np.uint64), CPU)


@pytest.mark.gpu
def test_copies_to_a_gpu_do_not_share_their_staging_memory() -> None:
    """The pinned memory of a copy is not reused before the GPU has read it."""
    device = torch.device("cuda")
    arrays = [np.full((1 << 20,), number, np.float32) for number in range(64)]
    tensors = [from_array(array, device) for array in arrays]
    assert [float(tensor.min()) == float(tensor.max()) == number for number, tensor in enumerate(tensors)] == [True] * 64
    assert all(np.array_equal(to_array(tensor), array) for tensor, array in zip(tensors, arrays, strict=True))


def test_memory_beside_a_cpu_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    empty = torch.empty_strided

    def recorded(*args: object, pin_memory: bool = False, **options: object) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*args, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch, "empty_strided", recorded)
    from_array(np.ones(3, np.float32), torch.device("meta"))
    to_array(from_array(np.ones(3, np.float32), CPU), copy=True)
    assert not any(asked)
    asked.clear()
    with pytest.raises((RuntimeError, AssertionError)):
        from_array(np.ones(3, np.float32), torch.device("cuda", 99))
    assert asked[0], "for a GPU"
