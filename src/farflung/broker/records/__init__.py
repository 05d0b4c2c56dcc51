"""What the broker stores on disk.

- ``run_folders``: ``RunFolders``: folders of runs, their owners and limits.
- ``checkpoint_room``: how much disk space the checkpoints of a run take.
- ``bundle_file``: the job of a run with its graphs.
- ``journal``: ``Journal``: which runs there are and how far each is, in SQLite.
- ``run_store``: ``RunStore``: documents, metrics and checkpoints of one run.
- ``share_hashes``: ``ShareHashes``: what workers report of the shares of checkpoints.
- ``report_limits``: ``ReportLimits``: what workers may report of steps and evaluations.
- ``run_log``: ``RunLog``: the latest lines of a run, in order for each watcher.
- ``metrics_file``: ``MetricsFile``: the records of a run on disk, also after its folder was deleted.
- ``latest_records``: the newest step and evaluation of a run.
- ``broker_log``: log files of the broker and of runs.
- ``presence_book``: ``PresenceBook``: which workers are here, and why others left.
- ``standing_book``: ``StandingBook``: which members broke the protocol, were late, or have broken machines.
- ``backlog``: ``Backlog``: lines that wait for space on a full disk.
- ``watch_history``: what watchers received, for a broker that is started again.
- ``mirror``: ``Mirror``: copies of checkpoints in an object store.
- ``backup``: ``back_up``, ``restore``: the folder in one file.
"""
