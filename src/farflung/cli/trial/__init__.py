"""Commands to try farflung out on one machine.

- ``demo``: train a small model across two regions; ``demo_runs``: its jobs; ``demo_results``, ``demo_summary``: its last lines.
- ``emulate``: programs on an emulated network; ``emulation_facts``: what it prints.
- ``chaos``: a job under injected faults.
- ``child_commands``: ``farflung`` commands as child processes.
"""
