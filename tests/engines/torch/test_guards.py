"""Arguments that would make a kernel read past a tensor, or crash, are refused before the kernel runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farflung.engines.torch.guards import PSEUDO_KERNELS, guarded
from farflung.engines.torch.program import lookup

META = torch.device("meta")


def recurrent(**changes: Any) -> dict[str, Any]:
    weights = [torch.randn(20, 4), torch.randn(20, 5), torch.randn(20), torch.randn(20)]
    given = {"x": torch.randn(3, 2, 4), "hx": [torch.zeros(1, 2, 5)] * 2, "params": weights, "has_biases": True, "num_layers": 1}
    return given | {"dropout": 0.0, "train": True, "bidirectional": False, "batch_first": False} | changes


def lstm(given: dict[str, Any]) -> Any:
    return guarded("aten.lstm.input", lookup("aten.lstm.input"))(*given.values())


def test_a_network_that_fits_runs_and_has_the_same_shapes_on_the_meta_device() -> None:
    given = recurrent()
    made = lstm(given)
    on_meta = lstm(given | {"x": given["x"].to(META), "hx": [item.to(META) for item in given["hx"]]})
    assert [item.shape for item in on_meta] == [item.shape for item in made]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"params": [torch.randn(2, 4), torch.randn(3, 5), torch.randn(1), torch.randn(1)]}, "weights do not fit"),
        ({"params": []}, "1 layers of width 5"),
        ({"num_layers": -1}, "-1 layers"),
        ({"has_biases": False}, "weights do not fit"),
        ({"bidirectional": True}, "hidden state of"),
        ({"hx": [torch.zeros(1, 9, 5)] * 2}, r"a hidden state of \[1, 9, 5\]"),
        ({"hx": [torch.zeros(1, 2, 7)] * 2}, "weights do not fit"),
        ({"hx": [torch.zeros(1, 2, 5)]}, "1 hidden states"),
        ({"x": torch.zeros(3, 0, 4)}, "of three dimensions"),
        ({"x": torch.zeros(3, 2, 4, dtype=torch.float64)}, "several element types"),
        ({"dropout": 2.0}, "dropout 2.0 is not between 0 and 1"),
    ],
)
def test_networks_that_do_not_fit_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        lstm(recurrent(**changes))


def ctc(targets: Any, heard: Any = (5, 5), said: Any = (2, 2), blank: int = 0) -> torch.Tensor:
    return PSEUDO_KERNELS["farflung.ctc_loss"](
        torch.randn(5, 2, 6).log_softmax(-1), torch.tensor(targets), torch.tensor(heard), torch.tensor(said), blank, 1, False
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"targets": [[1, -100_000_000], [1, 1]]}, "not one of the 6 classes"),
        ({"targets": [[1, 100_000_000], [1, 1]]}, "not one of the 6 classes"),
        ({"targets": [[1, 1], [1, 1]], "heard": [50, 5]}, "an input length is not between 0 and 5"),
        ({"targets": [[1, 1], [1, 1]], "said": [-2, 2]}, "a target length is not between 0 and 2"),
        ({"targets": [1, 2, 3], "said": [2, 2]}, "add up to 4, but there are 3 targets"),
        ({"targets": [[1, 1], [1, 1]], "blank": 6}, "blank 6 of 6 classes"),
        ({"targets": [[1, 1], [1, 1]], "heard": [5, 5, 5]}, "lengths for 2 rows"),
    ],
)
def test_labels_and_lengths_that_a_kernel_would_trust_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ctc(**given)


def test_labels_behind_a_row_s_length_may_be_anything() -> None:
    assert torch.isfinite(ctc([[1, 2], [3, -100]], said=[2, 1]))


@pytest.mark.parametrize("ends", [[4, 2, 6], [-4, 2, 6], [2, 4, 1_000_000], [2, 3, 4]])
def test_groups_that_do_not_cover_the_rows_are_refused(ends: list[int]) -> None:
    rows, weight = torch.randn(6, 4), torch.randn(3, 4, 8)
    with pytest.raises(ValueError, match="the offsets do not rise from 0 to the number of rows, 6"):
        PSEUDO_KERNELS["farflung.grouped_mm"](rows, weight, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("sizes", [[2, 2, 1], [7, -1, 0], [2, 4], [2.0, 2.0, 2.0]])
def test_parts_that_do_not_cover_the_rows_are_refused(sizes: list[int]) -> None:
    rows, weights = torch.randn(6, 4), [torch.randn(8, 4)] * 3
    with pytest.raises(ValueError, match=r"the sizes do not add up to the number of rows, 6|one per weight|must be integers"):
        PSEUDO_KERNELS["farflung.grouped_linear"](rows, weights, torch.tensor(sizes))


def test_parts_have_weights_of_one_shape() -> None:
    for weights in ([torch.randn(8, 4), torch.randn(8, 3)], [torch.randn(4), torch.randn(4)]):
        with pytest.raises(ValueError, match="weights must be N x 4"):
            PSEUDO_KERNELS["farflung.grouped_linear"](torch.randn(6, 4), weights, torch.tensor([3, 3]))


def test_fewer_norms_than_slices_are_refused() -> None:
    norm = guarded("aten._weight_norm.default", lookup("aten._weight_norm.default"))
    with pytest.raises(ValueError, match=r"norms of shape \[1, 1\]"):
        norm(torch.randn(300, 4), torch.randn(1, 1))
    assert norm(torch.randn(3, 4), torch.randn(3, 1)).shape == (3, 4)


def call(target: str, *args: Any, **kwargs: Any) -> Any:
    return guarded(target, lookup(target))(*args, **kwargs)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_a_quotient_that_does_not_fit_is_refused(kind: torch.dtype, mode: str) -> None:
    least = torch.tensor([3, torch.iinfo(kind).min], dtype=kind)
    for target, divisor in (("aten.div.Tensor_mode", torch.tensor([-1], dtype=kind)), ("aten.div.Scalar_mode", -1)):
        with pytest.raises(ValueError, match=f"the smallest int{8 * kind.itemsize} is divided by -1"):
            call(target, least, divisor, rounding_mode=mode)
        assert call(target, least[:1], divisor, rounding_mode=mode).tolist() == [-3]
    assert call("aten.div.Tensor_mode", least.to(META), torch.ones(2, dtype=kind, device=META), rounding_mode=mode).shape == (2,)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_a_weight_without_elements_has_no_norm(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="which has no elements"):
        call("aten._weight_norm.default", torch.zeros(shape), torch.zeros(shape[0], *(1,) * (len(shape) - 1)), 0)


def test_a_weight_of_many_slices_needs_as_many_norms() -> None:
    with pytest.raises(ValueError, match=r"norms of shape \[1, 1\]"):
        call("aten._weight_norm.default", torch.zeros(200_000, 1), torch.zeros(1, 1), 0)


@pytest.mark.parametrize("coordinate", [float("nan"), float("inf"), -1e30, 3e9])
def test_coordinates_that_are_no_place_are_refused(coordinate: float) -> None:
    grid = torch.zeros(1, 3, 3, 2)
    assert call("aten.grid_sampler.default", torch.ones(1, 2, 4, 4), grid, 0, 0, True).shape == (1, 2, 3, 3)
    grid[0, 1, 2, 1] = coordinate
    with pytest.raises(ValueError, match="a coordinate of the grid is"):
        call("aten.grid_sampler.default", torch.ones(1, 2, 4, 4), grid, 0, 0, True)


def test_operators_do_not_give_more_tensors_than_a_graph_may_have() -> None:
    empty, long = torch.empty(0, device=META), torch.empty(1 << 40, device=META)
    for target, args in (
        ("aten.chunk.default", (empty, 1 << 31)),
        ("aten.split.Tensor", (long, 1)),
        ("aten.unbind.int", (long, 0)),
        ("aten.unbind.int", (long, -1)),
    ):
        with pytest.raises(ValueError, match="tensors, at most 4096 are allowed"):
            call(target, *args)
    assert len(call("aten.split.Tensor", torch.ones(5), 2)) == 3


def test_random_integers_do_not_begin_at_the_end_of_the_integers() -> None:
    with pytest.raises(ValueError, match="the least number 9223372036854775807 is not between"):
        call("aten.random_.from", torch.zeros(3), (1 << 63) - 1, None)
    assert call("aten.random_.from", torch.zeros(3), 1 << 20, None).min() >= 1 << 20
