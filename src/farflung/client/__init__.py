"""The submitting side.

- ``control``: ``ControlClient``: status, logs, watch, stop, resume. Imports neither plans nor tensors.
- ``connection``: ``Client``: also submits, sends weights and fetches states.
- ``dashboard_tunnel``: connections with a broker's dashboard.
- ``planned_run``: ``PlannedRun``: the plan of a run as the broker reports it.
- ``batch_feeder``: feeds a run from the process that submitted it.
- ``shared_batches``: micro-batches of a caller's function, for every stage that reads them.
- ``in_process``: a run on threads of this process.
"""
