"""The error tree: one base, one exit code for each kind, one line of text."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from farflung import errors
from farflung.errors import FarflungError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FarflungError)]


def test_all_is_complete() -> None:
    assert sorted(errors.__all__) == sorted(kind.__name__ for kind in KINDS)


def test_each_kind_has_an_exit_code_of_its_own() -> None:
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    assert len(set(codes.values())) == len(codes)
    assert all(0 < code < 256 for code in codes.values())
    assert codes["Stopped"] == 130, "what a shell reports after Ctrl-C"


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_exceptions_of_the_base_that_keep_their_text(kind: type[FarflungError]) -> None:
    with pytest.raises(FarflungError) as caught:
        raise kind("the rule, the value, the remedy")
    assert str(caught.value) == "the rule, the value, the remedy"
    assert kind.__doc__
    assert not issubclass(kind, OSError)


def test_the_tree_in_the_head_names_every_kind() -> None:
    head = errors.__doc__ or ""
    assert [kind.__name__ for kind in KINDS if kind.__name__ not in head] == []


def test_the_page_lists_every_exit_code() -> None:
    page = (Path(__file__).parent.parent / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    assert listed == {0, 143} | {kind.exit_code for kind in KINDS}
