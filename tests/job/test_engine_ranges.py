"""Engines with ranges of versions in the limits of a job."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.job.engine_ranges import in_ranges
from farflung.job.spec import LimitSpec


@pytest.mark.parametrize(
    ("engine", "inside"),
    [
        ("torch 2.13.0+cpu", True),  # the build does not count
        ("torch 2.13.7", True),
        ("torch 2.14.0", False),
        ("torch 2.12.1", False),
        ("torch 2.13.0a0+git1234", False),
        ("jax 0.10.2", True),
        ("reference 2.4.6", False),
        ("torch of my own", False),
        ("", True),  # a topology that was written by hand
    ],
)
def test_an_engine_is_inside_one_of_the_ranges(engine: str, inside: bool) -> None:
    assert in_ranges(engine, ("torch>=2.13,<2.14", "jax")) is inside


def test_without_ranges_every_engine_is_inside() -> None:
    assert in_ranges("torch 2.13.0", ())


@pytest.mark.parametrize("text", ["torch>>2", "torch 2.13", "", "torch[cuda]>=2", "torch @ https://example.org/torch.whl"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"engines.*is no engine with a range of versions, such as \"torch>=2.13,<2.14\""):
        LimitSpec(engines=(text,))
