"""The submitting side.

- ``connection``: ``Client``: submits, watches, stops, fetches states.
- ``batch_feeder``: feeds a run from the process that submitted it.
- ``shared_batches``: micro-batches of a caller's function, for every stage that reads them.
- ``in_process``: a run on threads of this process.
"""
