"""Real machines for launchers, as processes of this one. Benchmarks and tests use them.

- ``ssh_hosts``: servers of OpenSSH.
- ``slurm_nodes``: a Slurm with several nodes.
- ``ray_cluster``: a Ray cluster.
- ``waiting``: waits for what other processes do at their own pace.
"""
