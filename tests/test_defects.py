"""The text of a defect says where in farflung's code it was raised."""

from __future__ import annotations

import pytest

from farflung.defects import defect_text
from farflung.known_names import close_names


def test_a_defect_names_the_last_line_of_farflung() -> None:
    with pytest.raises(TypeError) as caught:
        close_names("a", None)  # type: ignore[arg-type]
    assert defect_text(caught.value).startswith(f"TypeError: {caught.value} (at farflung/known_names.py:")


def test_a_defect_elsewhere_has_only_kind_and_text() -> None:
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["gone"]
    assert defect_text(caught.value) == "KeyError: 'gone'"
