"""Reports of runs to experiment trackers, from the run's folder, in processes of their own.

In the order in which a record passes through it:

- ``processes``: ``TrackerProcesses``: starts a process for each run and tracker, and starts it again after a failure.
- ``__main__``: that process.
- ``follower``: ``RunFollower``: reads the records of a run, while it trains or afterwards.
- ``cursor``: ``Cursor``: how far a run is reported.
- ``run_events``: plans, checkpoints, losses and other notes, from the run's folder.
- ``values``: records as values under the names that users of trackers expect.
- ``base``: ``Tracker``: the protocol that a tracker has. Its members are in ``farflung.integrations.trackers``.
- ``registry``: ``TRACKERS``: trackers by name.
- ``secrets``: texts of foreign code without secrets.
"""

from farflung.tracking.base import MakeTracker, TrackedRun, Tracker
from farflung.tracking.follower import RunFollower
from farflung.tracking.processes import TrackerProcesses
from farflung.tracking.registry import FILE_TRACKERS, TRACKERS, check_installed, check_names, tracker_names

__all__ = [
    "FILE_TRACKERS",
    "TRACKERS",
    "MakeTracker",
    "RunFollower",
    "TrackedRun",
    "Tracker",
    "TrackerProcesses",
    "check_installed",
    "check_names",
    "tracker_names",
]
