"""One process that forks serves all tests of this folder: it loads PyTorch once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farflung.engines.isolated import IsolatedEngine, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def engine(zygote: Zygote) -> IsolatedEngine:
    return IsolatedEngine(zygote)
