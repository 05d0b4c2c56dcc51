"""What the broker keeps on disk.

- ``journal``: which runs there are and how far each is, in SQLite.
- ``restore``: runs of an earlier broker process, from journal and folders.
- ``run_folders``: folders of runs: owners and quotas.
- ``run_store``: documents, metrics and checkpoints of one run.
- ``run_log``: the latest lines of a run, in order for each watcher.
- ``latest_records``: the newest step and evaluation of a run.
- ``broker_log``: log files of the broker and of runs.
- ``backlog``: lines that wait for space on a full disk.
- ``mirror``: copies checkpoints to an object store.
"""
