"""Commands plan the same small models again and again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.captured_models import captured_once


@pytest.fixture(scope="module", autouse=True)
def models_are_captured_once() -> Iterator[None]:
    with captured_once():
        yield
