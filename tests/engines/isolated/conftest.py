"""One process that forks serves all tests of this folder: it loads PyTorch once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from farflung.engines.isolated import IsolatedEngine, Zygote
from farflung.engines.isolated.arena import Arena, make_file
from tests.support.engines.arena_ends import ArenaEnds


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def engine(zygote: Zygote) -> IsolatedEngine:
    return IsolatedEngine(zygote)


@pytest.fixture
def ends() -> Iterator[ArenaEnds]:
    file = make_file(1 << 20)
    made = ArenaEnds(Arena(file, 0), Arena(file, 1))
    os.close(file)
    yield made
    made.worker.close()
    made.other.close()
