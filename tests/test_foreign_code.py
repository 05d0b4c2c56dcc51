"""What foreign code raises becomes the error that the caller describes."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.foreign_code import first_line, translated


def test_an_error_is_described_and_keeps_its_cause() -> None:
    with (
        pytest.raises(InputError, match="the model fails: no") as caught,
        translated(lambda e: InputError(f"the model fails: {e}")),
    ):
        raise ValueError("no")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_that_is_described_by_itself_stays_as_it_is() -> None:
    with pytest.raises(InputError, match="mine") as caught, translated(lambda error: error):
        raise InputError("mine")
    assert caught.value.__cause__ is None


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt), translated(lambda error: InputError("described")):
        raise KeyboardInterrupt


def test_a_long_text_ends_after_a_whole_word() -> None:
    assert first_line(ValueError("\n  no  \nmore")) == "no"
    assert first_line(ValueError()) == "ValueError"
    text = first_line(ValueError("initialize " * 40))
    assert len(text) <= 300
    assert text.endswith("initialize ...")
