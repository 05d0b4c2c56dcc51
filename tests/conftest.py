"""Settings of tools that the tests use."""

import logging
import os
import tempfile

import pytest
from hypothesis import settings

# asserts of the shared code explain themselves like those of tests
pytest.register_assert_rewrite("tests.support")

# torch's structured trace log would format every tensor for pytest's log handler
logging.getLogger("torch.__trace").propagate = False
logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)

# the key by which brokers know this user, and owners' wishes, belong to the tests only
os.environ["FARFLUNG_HOME"] = tempfile.mkdtemp(prefix="farflung-home-")

# no test is timed; at the gate (`make test`) the examples are the same each time, by hand they are new ones
settings.register_profile("new", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("new")
