"""A cluster of processes whose broker waits long before it expires a lease."""

from __future__ import annotations

from farflung.chaos.kills import BROKER
from farflung.chaos.local_cluster import LocalCluster

#: A broker that waits for long before it takes a silent worker for dead: on a busy machine a process may not run for seconds.
PATIENT = """
from farflung.__main__ import main
from farflung.protocol.leases import Leases
from farflung.units import Seconds
Leases.__init__.__defaults__ = (Seconds(60.0), Seconds(0.5))
main()
"""


class Patient(LocalCluster):
    """With such a broker."""

    def start_process(self, name: str, arguments: list[str]) -> None:
        plain = name == BROKER and arguments[:2] == ["-m", "farflung"]
        super().start_process(name, ["-c", PATIENT, *arguments[2:]] if plain else arguments)
