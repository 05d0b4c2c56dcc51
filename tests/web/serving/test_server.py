"""A dashboard ends with its owner, whatever its threads wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.network.futures import PATIENCE

pytest.importorskip("nicegui")

SERVE = """
import secrets, socket, threading
from farflung.web.serving.rights import Rights
from farflung.web.serving.server import Serving, serve
from farflung.web.serving.sign_in import SignIn
from farflung.web.sources.sources import Sources

class Stuck(Sources):
    def refresh(self):
        print("waits", flush=True)
        threading.Event().wait()  # as a call to a broker that is gone

rights = Rights(SignIn(secrets.token_bytes(32), secrets.token_bytes(32)), lambda: None, None)
serve(Serving(listening=socket.create_server(("127.0.0.1", 0)), sources=Stuck(), rights=rights, owned=True))
"""


def test_a_dashboard_ends_with_its_owner_also_while_a_call_of_the_broker_lasts() -> None:
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
