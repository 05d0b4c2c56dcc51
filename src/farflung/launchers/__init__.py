"""Clusters from a file: start, scale and stop broker and workers on machines that something else provides.

In the order in which a command passes through it:

- ``cluster_file``: reads the cluster file. ``cluster_spec``: ``ClusterSpec``, its content.
- ``member_options``: options of brokers and workers as keys.
- ``lifecycle``: ``up``, ``scale`` and ``down``, the same for each provider.
- ``state``: what this machine knows about clusters that are up.
- ``base``: ``Provider``: the protocol; ``registry``: ``PROVIDERS``: providers by name.
- ``ssh``: hosts that are reached with the command ``ssh``.
- ``compose``: containers of Docker Compose; ``containers``: what it shares with other managers of containers.
- ``kubernetes``: a StatefulSet and a Deployment.
- ``ray``: actors of a Ray cluster; ``ray_actors``: what runs on its nodes; ``ray_log``: a program that prints their logs.
- ``slurm``: tasks of Slurm's job arrays; ``local_broker``: the broker as a process of this machine.
- ``host_requests``: what a provider asks of a host; ``hosted_processes``: the processes of a cluster on one host.
- ``clouds``: jobs of SkyPilot, and notices of clouds that a spot machine ends soon.
- ``programs``: programs that providers call.

Nothing is imported here: ``farflung host`` starts on each host, several times, and needs three of these modules.
"""
