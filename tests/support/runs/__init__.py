"""Whole runs: brokers and workers in this process.

``loopback``          a broker and workers in this process, over real connections
``cluster_fixtures``  fixtures of tests that run workers
``small_training``    ``train`` on workers of this process and on workers of a ticket
``played_runs``       a submitted bundle, followed to its end
``watched_runs``      what watchers of a run receive, as frames
``helped_runs``       runs with helpers
``slowed_processes``  a process that gets a part of the time only
``resumed_runs``      the second half of a run
``worker_deaths``     ways to lose a worker or a link during a step
``model_exports``     runs of models of other libraries, and their export
"""
