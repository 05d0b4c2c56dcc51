"""Commands about runs.

- ``submit``: submit a job; ``continuation``: the options that continue an earlier run.
- ``watch``: follow a run; ``run_view``: how a run looks on the terminal.
- ``stop``: end a run.
- ``logs``: the log of a run, a worker or the broker.
- ``report``: a page about one run or several.
- ``ledger``: what each machine contributed to runs, and what that cost.
- ``trace``: where the time of a run went.
- ``generate``: text by the model of a run.
- ``checkpoint``: list, verify, export and copy checkpoints; ``model_export``: a folder for ``from_pretrained``.
"""
