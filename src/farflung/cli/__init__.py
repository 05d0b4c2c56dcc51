"""The command line. ``main`` runs a command, ``commands`` lists them all; each other module holds the commands of one topic."""

import os

# Plain help texts: drawing boxes around them takes longer than everything else that `farflung --help` does.
os.environ.setdefault("TYPER_USE_RICH", "0")
