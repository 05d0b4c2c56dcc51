"""Hands in jobs from inside a node: ``python -m benchmarks.harness.submitter TICKET``, for ``harness.emulated``.

Each line of standard input names a file with a packed job; for each a line of JSON says where it ran, or what went wrong.
gRPC makes its sockets on threads of its own, so the process that drives a benchmark can't step into a node itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from farflung.client.connection import Client
from farflung.errors import FarflungError
from farflung.messages.submission import Bundle
from farflung.security import Ticket
from farflung.worker.membership import join

__all__ = ["main"]


def _run(client: Client, path: Path) -> dict[str, Any]:
    bundle = Bundle.from_bytes(path.read_bytes())
    answer = client.submit(bundle)
    for _ in client.watch(answer["run"]):
        pass
    return {"folder": answer["folder"]}


def main(ticket: str) -> None:
    """Serve until the standard input ends."""
    client = Client(join(Ticket.parse(ticket), name=f"bench-{os.getpid()}", role="client"))
    try:
        for line in sys.stdin:
            try:
                answer = _run(client, Path(line.strip()))
            except FarflungError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)  # noqa: T201 - what the parent reads
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
