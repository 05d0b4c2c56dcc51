"""Commands about machines.

- ``broker``: start a broker; ``broker_service``: ``--service`` writes a systemd unit instead.
- ``broker_records``: ``backup``, ``restore`` and brokers that share records. ``observation``: metrics and traces.
- ``join``: make this machine a worker.
- ``web``: the dashboard; ``broker_dashboard``: the one that a broker starts.
- ``tickets``: issue, list and revoke tickets.
- ``kick``: bar a member.
- ``status``: workers and runs.
- ``owner``: what the owner of a machine wants of the worker on it: pause, resume, drain, leave, limit.
- ``profile``: measure the links between workers.
- ``launch``: start, scale and stop the cluster of a cluster file; ``host``: its processes on one host.
- ``cluster_logs``: what the processes of a cluster print.
- ``doctor``: diagnose this machine.
- ``systemd_units``: units of brokers and workers.
- ``service_log``: whether the output is the log of a service, where no ticket belongs.
- ``timed_log``: the log on the terminal.
"""
