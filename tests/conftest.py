"""Settings of tools that the tests use."""

import logging

from hypothesis import settings

# torch's structured trace log would format every tensor for pytest's log handler
logging.getLogger("torch.__trace").propagate = False
logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)

# no test is timed; at the gate (`make test`) the examples are the same each time, by hand they are new ones
settings.register_profile("new", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("new")
