"""The command line. Every error is one clear line with an exit code of its own.

- ``main``: the entry point.
- ``commands``: the list of commands by topic. The module of a command is imported when the command runs.
- ``cluster``: ``broker``, ``join``, ``status``, ``ticket``, ``doctor``, ``profile``; ``pause``, ``resume``, ``drain``, ``leave``,
  ``limit``.
- ``runs``: ``submit``, ``watch``, ``stop``, ``logs``, ``report``, ``trace``, ``generate``, ``checkpoint``.
- ``planning``: ``plan``, ``simulate``, ``graph``.
- ``trial``: ``demo``, ``emulate``, ``chaos``.
- ``options``: options that several commands have, and the checks of their values.
- ``home``: the folders and tickets of this machine.
- ``broker_connection``: how a command reaches the broker.
- ``waiting_reason``: what a waiting run waits for.
- ``completion``: what the Tab key of a shell completes.
"""

import os

# Plain help texts: drawing boxes around them takes longer than everything else that `farflung --help` does.
os.environ.setdefault("TYPER_USE_RICH", "0")
