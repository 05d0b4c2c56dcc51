"""Expressions give the arrays and the shapes that they say, travel as text, and are checked before anything is read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from farflung.errors import CheckpointError, InputError
from farflung.graph.weight_expressions import evaluate, expressions_from_json, expressions_to_json, shape_of

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(6.0, 12.0).reshape(2, 3), "c": np.arange(4.0).reshape(1, 4)}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a", ARRAYS["a"]),
        (["stack", 1, "a", "b"], np.stack([ARRAYS["a"], ARRAYS["b"]], 1)),
        (["cat", 1, "a", ["slice", 1, 1, 2, "b"]], np.concatenate([ARRAYS["a"], ARRAYS["b"][:, 1:2]], 1)),
        (["transpose", 0, 1, "a"], ARRAYS["a"].T),
        (["permute", [1, 0], "a"], ARRAYS["a"].T),
        (["reshape", [3, 2], "a"], ARRAYS["a"].reshape(3, 2)),
        (["norm", "a"], np.linalg.norm(ARRAYS["a"], axis=1).astype(np.float32)),
    ],
)
def test_arrays_and_shapes(source: Any, wanted: np.ndarray) -> None:
    found = evaluate(source, ARRAYS.__getitem__)
    assert found.dtype == wanted.dtype
    assert found.flags.c_contiguous
    assert np.array_equal(found, wanted)
    assert shape_of(source, lambda name: ARRAYS[name].shape) == wanted.shape
    assert expressions_from_json(expressions_to_json({"state": source})) == {"state": source}


def test_a_scalar_stays_one() -> None:
    assert evaluate(["reshape", [], "x"], lambda name: np.ones(1)).shape == ()


@pytest.mark.parametrize(
    "source",
    [
        ["cat", 0, "a", "c"],
        ["stack", 0, "a", "c"],
        ["stack", 3, "a", "b"],
        ["reshape", [5], "a"],
        ["transpose", 0, 1 << 70, "a"],
        ["transpose", 0, 4, "a"],
    ],
)
def test_shapes_that_do_not_fit(source: Any) -> None:
    with pytest.raises(CheckpointError, match=r"tensors of shapes \[.*\] do not fit '\w+': use the right file"):
        shape_of(source, lambda name: ARRAYS[name].shape)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a": 1}',
        '{"a": ["exec", "b"]}',
        '{"a": [["norm"], "b"]}',
        '{"a": ["stack", "b", "c"]}',
        '{"a": ["stack", 0]}',
        '{"a": ["norm", "b", "c"]}',
        '{"a": ["slice", 0, -1, 2, "b"]}',
        '{"a": ["permute", [true], "b"]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"weights\.sources is malformed: leave it out, the submitting process writes it"):
        expressions_from_json(text)


def test_shapes_take_no_memory() -> None:
    """A stack that would take a petabyte is refused by its shape, before anything is read."""
    assert shape_of(["stack", 0, *["x"] * 1000], lambda name: (1 << 20, 1 << 20)) == (1000, 1 << 20, 1 << 20)
    assert shape_of(["transpose", 0, 1, ["nf4_codes", "x"]], lambda name: (1 << 20, 1 << 20)) == (1 << 19, 1 << 20)


def test_an_inner_result_is_not_far_larger_than_tensors_and_result() -> None:
    """A job could fill a worker's memory: a slice of a thousand copies of a tensor of its files."""
    shapes = {"w": (1000, 1000)}
    copies: list[Any] = ["cat", 0, *["w"] * 1000]
    with pytest.raises(
        CheckpointError, match=r"^an expression for weights has 1000000000 elements inside, at most 8000000 are allow"
    ):
        shape_of(["slice", 0, 0, 1, copies], shapes.__getitem__)
    assert shape_of(copies, shapes.__getitem__) == (1_000_000, 1000)
    assert shape_of(["slice", 0, 0, 1, ["cat", 0, *["w"] * 8]], shapes.__getitem__) == (1, 1000)


def test_slices_do_not_keep_their_tensors() -> None:
    """100 rows of a tensor, each a slice, took the memory of 100 tensors: a job could fill a worker's memory."""
    source: Any = ["cat", 0, *[["slice", 0, row, row + 1, "w"] for row in range(100)]]
    tracemalloc.start()
    try:
        found = evaluate(source, lambda name: np.ones((100, 5000)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.shape == (100, 5000)
    assert peak < 5 * found.nbytes


def test_expressions_are_not_nested_without_end() -> None:
    source: Any = "w"
    for _ in range(32):
        source = ["transpose", 0, 1, source]
    assert expressions_from_json(expressions_to_json({"state": source})) == {"state": source}
    with pytest.raises(InputError, match=r"weights\.sources is malformed"):
        expressions_from_json(expressions_to_json({"state": ["transpose", 0, 1, source]}))
