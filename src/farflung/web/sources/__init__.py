"""What pages read. One reader of each run and one poll of the broker serve all browsers. Nothing here knows about pages.

- ``run_series``: the columns of a run's metrics, read from the folder as the run grows.
- ``live_run``: a run: its folder, its columns, its plan and its result.
- ``broker_poll``: the broker's status through ``client``, and why it does not answer.
- ``sources``: all of it, refreshed once a second by one task.
- ``run_figures``, ``run_events``, ``run_analysis``, ``last_step``, ``checkpoints``: what a run's pages show.
- ``alerts``: what needs attention. ``cluster_totals``, ``measured_topology``: the machines. ``ledgers``: contributions.
- ``what_if_sessions``: open what-if pages.
- ``downsampling``: a long column in few points.
"""
