"""Figures of the command line.

- ``launchers``: from ``farflung up`` to the first step.
- ``startup``: CPU time of commands before they do their work.
- ``web``: the dashboard with many machines and steps; ``synthetic_run`` and ``idle_members`` stand for them.
- ``members``: what a thousand ``idle_members`` cost one broker.
"""
