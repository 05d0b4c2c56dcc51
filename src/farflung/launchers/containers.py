"""What broker and workers are in containers, for Docker Compose and Kubernetes: command lines, ports and the user."""

from __future__ import annotations

from farflung.launchers.cluster_spec import ClusterSpec

__all__ = ["HOME", "MEMBER_PORT", "PORT", "USER", "broker_words", "worker_words"]

#: The port of the broker for first contacts and clients, and the one for members, which follows it.
PORT, MEMBER_PORT = 7070, 7071
#: The user of the image (Containerfile), and the folder that it may write.
USER, HOME = 10001, "/var/lib/farflung"


def broker_words(cluster: ClusterSpec, host: str) -> list[str]:
    """Return the command of the broker; workers reach it at ``host``."""
    options = cluster.broker.model_copy(update={"listen": cluster.broker.listen or f"0.0.0.0:{PORT}"})
    options = options.model_copy(update={"advertise": options.advertise or host})
    return ["broker", *options.words(), "--valid", cluster.broker.valid, "--no-tickets"]


def worker_words(cluster: ClusterSpec, name: str) -> list[str]:
    """Return the command of a worker called ``name``."""
    return ["join", "--name", name, *cluster.workers.words()]
