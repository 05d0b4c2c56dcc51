"""What clients and workers ask a broker for, outside of workers' sessions.

- ``permission``: who may call what.
- ``submissions``: ``Submissions``: submit and resume runs.
- ``document_check``: large documents are read in a process that may die, before the broker reads them.
- ``continuations``: ``Continuations``: a run that continues an earlier one.
- ``transfers``: ``Transfers``: weights and checkpoint shards in, states out.
- ``status_queries``: ``StatusQueries``: status, logs, the broker's clock.
- ``run_status``: the status of one run.
- ``idle_reasons``: why a worker is idle.
- ``watchers``: ``Watchers``: everything that happens in a run, as a stream.
- ``run_control``: ``RunControl``: stop runs; pause, drain and dismiss workers.
- ``dashboard_tunnel``: connections of clients with the dashboard.
- ``link_profile``: ``LinkProfile``: measure all links.
"""
