"""Settings of tools that the tests use."""

import gc
import logging
import os
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import settings

# asserts of the shared code explain themselves like those of tests
pytest.register_assert_rewrite("tests.support")

# torch's structured trace log describes every tensor as soon as it has a handler, and pytest gives one to all loggers
logging.getLogger("torch.__trace").propagate = False
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]

# the key by which brokers know this user, and owners' wishes, belong to the tests only
os.environ["FARFLUNG_HOME"] = tempfile.mkdtemp(prefix="farflung-home-")

# no test is timed; at the gate (`make test`) the examples are the same each time, by hand they are new ones
settings.register_profile("new", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("new")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """pytest keeps what it finds, so garbage collections would only take seconds. gc.freeze would hide modules from a capture."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
