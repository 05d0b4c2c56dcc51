"""Workers that only send heartbeats: ``python -m benchmarks.commands.idle_members TICKET COUNT`` joins until it is killed."""

from __future__ import annotations

import sys
import threading

from farflung.errors import ConnectionLost
from farflung.messages.reports import Hello, OfferItem
from farflung.security import Ticket
from farflung.worker.control_session import ControlSession
from farflung.worker.membership import join

__all__ = ["main", "member_name"]


def member_name(number: int) -> str:
    """The name of an idle worker."""
    return f"machine-{number:02}"


def _serve(ticket: Ticket, number: int) -> None:
    session = ControlSession(join(ticket, name=member_name(number), role="worker").client, lambda line: None)
    offer = OfferItem(
        memory=16e9,
        kind="cpu",
        description="16 cores",
        host=f"host-{number}",
        processors=(),
        versions={"farflung": "0.1.0", "engine": "torch 2.13.0+cpu", "python": "3.11.7"},
        speed=1e11,
        factor=0.8,
        overhead=1e-5,
        relay=False,
        reliable=True,
        region=f"region {number % 4}",
        disk=5e10,
    )
    session.open(lambda limits: Hello(address="", offer=offer))
    try:
        for _ in session.frames():
            pass
    except ConnectionLost:
        return


def main(arguments: list[str]) -> None:
    """Join with COUNT sessions, say so, and wait."""
    ticket, count = Ticket.parse(arguments[0]), int(arguments[1])
    threads = [threading.Thread(target=_serve, args=(ticket, number), name=f"idle-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
