"""Settings of tools that the tests use."""

import fcntl
import gc
import logging
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# asserts of the shared code explain themselves like those of tests
pytest.register_assert_rewrite("tests.support")

# torch's structured trace log describes every tensor as soon as it has a handler, and pytest gives one to all loggers
logging.getLogger("torch.__trace").propagate = False
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]

# the key by which brokers know this user, and owners' wishes, belong to the tests only
os.environ["FARFLUNG_HOME"] = tempfile.mkdtemp(prefix="farflung-home-")

# no test is timed; at the gate (`make test`) the examples are the same each time, by hand they are new ones, and twice as many
settings.register_profile("new", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("new")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """pytest keeps what it finds, so garbage collections would only take seconds. gc.freeze would hide modules from a capture.

    Of the processes of one run, the first collects alone and writes bytecode. In a new environment each process would otherwise
    compile the same thousands of modules at the same time, and rewrite the asserts of all tests.
    """
    gc.disable()
    with Path(__file__).open("rb") as file:  # closing it releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)  # waits for the first, then collects beside the others
        try:
            return (yield)
        finally:
            gc.enable()
