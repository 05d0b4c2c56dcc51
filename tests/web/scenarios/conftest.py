"""One browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers.browser import chromium, launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched(chromium()) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def outside_of_pytest() -> Iterator[None]:
    """Programs that a module starts serve pages as they do outside of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        yield
