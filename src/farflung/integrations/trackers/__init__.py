"""Experiment trackers, each behind the protocol ``Tracker``. ``docs/trackers.md`` shows each one in use.

- ``csv_file``: ``csv``: a table for spreadsheets.
- ``tensorboard``: ``tensorboard``: event files.
- ``wandb``: ``wandb``: Weights & Biases, also offline.
- ``mlflow``: ``mlflow``: an MLflow server or folder.
- ``trackio``: ``trackio``: a local database with a local dashboard.
"""

from farflung.tracking import TRACKERS, MakeTracker, TrackedRun, Tracker

__all__ = ["TRACKERS", "MakeTracker", "TrackedRun", "Tracker"]
