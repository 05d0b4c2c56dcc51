"""The broker process: tickets, workers' sessions, runs.

In the order in which a worker or a job passes through it:

- ``process``: ``Broker``: makes the parts, connects them, opens the ports.
- ``admission``: ``Admission``: tickets become certificates.
- ``access_control``: ``AccessControl``: revoked tickets and kicked members, at every call.
- ``quotas``, ``rate_limit``: ``TicketQuotas``: what the members of one ticket may do.
- ``session_table``, ``sessions``: ``Sessions``: reports of workers in, commands out, leases.
- ``worker_reports``, ``run_reports``: ``WorkerReports``: each report of a worker goes to the part that it concerns.
- ``requests``: what clients and workers ask for: submit, status, stop, watch, transfers.
- ``run_table``: ``RunTable``: the runs in memory and the machine of ``protocol.broker``, behind one lock.
- ``run_manager``: ``RunManager``: events to the machine, and its commands to ``attempts``.
- ``planning``: from a job and the joined machines to a plan with its estimate.
- ``live_run``: ``LiveRun``: one run in memory.
- ``attempts``: an attempt: planning, launch, helpers, better plans, end.
- ``progress``, ``excluded_members``, ``run_recorder``: step reports become the run's records.
- ``run_trackers``: ``RunTrackers``: runs are reported to experiment trackers.
- ``notices``: messages to the operator and to the watchers of a run.
- ``verification``: what replicas find when they compute work of others again.
- ``straggler_monitor``: slow devices and links, silent workers.
- ``restored_runs``: runs of an earlier broker process.
- ``links``: what is known of links, and how it is measured.
- ``records``: what is stored on disk.
- ``replication``: what is stored in a database, so that another broker can take over.
"""
