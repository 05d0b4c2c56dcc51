"""Commands about runs.

- ``submit``: submit a job; ``continuation``: the options that continue an earlier run.
- ``watch``: follow a run. ``live_run``: screen, lines or JSON; ``run_view``: what is known of the run; ``run_screen``: the live
  screen; ``loss_curve``: the losses as small bars.
- ``stop``: end a run.
- ``logs``: the log of a run, a worker or the broker.
- ``report``: a page about one run or several.
- ``ledger``: what each machine contributed to runs, and what that cost.
- ``trace``: where the time of a run went.
- ``generate``: text by the model of a run.
- ``serve``: a language model behind the OpenAI API. ``tracking``: send runs to experiment trackers.
- ``checkpoint``: list, verify, export and copy checkpoints.
"""
