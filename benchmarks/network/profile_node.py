"""A node whose links are probed: ``python -m benchmarks.network.profile_node FOLDER NAME LISTEN``.

It does what a worker does when the broker asks for a probe, without a model: one JSON object per line in
(``peer``, ``address``), one per line out.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.harness.priority import go_first
from farflung.errors import FarflungError
from farflung.security import Credentials
from farflung.transports import TransportConfig
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.worker.links.link_probe import probe_link

__all__ = ["main"]


def _tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _probe(endpoint: TcpEndpoint, peer: str, address: str) -> None:
    try:
        endpoint.connect(peer, address)
        found = probe_link(endpoint, peer)
        _tell(peer=peer, alpha=found.alpha, beta=found.beta, spread=found.spread)
    except FarflungError as error:
        _tell(peer=peer, cause=str(error))


def main() -> None:
    """Serve until the standard input ends."""
    go_first()
    folder, name, listen = sys.argv[1:]
    credentials = Credentials.load(Path(folder) / name)
    endpoint = TcpEndpoint(credentials, lambda peer, frame: None, listen=listen, config=TransportConfig(max_stripes=16))
    _tell(address=endpoint.address)
    for line in sys.stdin:
        asked = json.loads(line)
        threading.Thread(target=_probe, args=(endpoint, asked["peer"], asked["address"]), daemon=True).start()
    endpoint.close()


if __name__ == "__main__":
    main()
