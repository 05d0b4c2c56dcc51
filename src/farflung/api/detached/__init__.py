"""Runs that go on without the process that submitted them.

In the order of data flow:

``cluster``  ``connect``: a broker, to which jobs are submitted
``weights``  the weights of a run, fetched when they are first used
``run``      one run: wait for it, stop it, take its weights
``table``    the runs of a broker, as a table on a terminal and in a notebook
"""

from farflung.api.detached.cluster import Cluster, connect
from farflung.api.detached.run import DetachedRun
from farflung.api.detached.table import RunStatus, RunTable

__all__ = ["Cluster", "DetachedRun", "RunStatus", "RunTable", "connect"]
