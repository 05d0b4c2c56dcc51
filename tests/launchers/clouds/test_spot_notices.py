"""Notices of clouds, from a server on the loopback that answers like their metadata services."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from farflung.errors import InputError
from farflung.launchers.clouds.spot_notices import CLOUDS, SpotNotices
from tests.support.commands.command_processes import Program


class Metadata(BaseHTTPRequestHandler):
    """Answers with a notice if ``ends``, and only to requests with the header of the cloud."""

    ends: ClassVar[bool] = False

    def do_PUT(self) -> None:
        self._answer("secret" if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else None)

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/spot/instance-action":
            allowed = self.headers.get("X-aws-ec2-metadata-token") == "secret"
            self._answer('{"action": "terminate"}' if self.ends and allowed else None)
        elif self.path == "/computeMetadata/v1/instance/preempted":
            self._answer(str(self.ends).upper() if self.headers.get("Metadata-Flavor") == "Google" else None)
        elif self.path.startswith("/metadata/scheduledevents?api-version="):
            events = [{"EventType": "Reboot"}, *([{"EventType": "Preempt"}] if self.ends else [])]
            self._answer(json.dumps({"Events": events}) if self.headers.get("Metadata") == "true" else None)

    def _answer(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        monkeypatch.setattr("farflung.launchers.clouds.spot_notices._LINK_LOCAL", f"http://{address}")
        Metadata.ends = False
        yield Metadata
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_notice_is_seen_once_it_is_there(metadata: type[Metadata], cloud: str) -> None:
    assert not CLOUDS[cloud]()
    metadata.ends = True
    assert CLOUDS[cloud]()


def test_watching_ends_at_the_notice_or_when_stopped(metadata: type[Metadata]) -> None:
    seen: list[str] = []
    metadata.ends = True
    SpotNotices("aws").watch(lambda: seen.append("notice"))
    assert seen == ["notice"]
    metadata.ends = False
    waiting = SpotNotices("gcp")
    thread = threading.Thread(target=waiting.watch, args=(lambda: seen.append("none"),))
    thread.start()
    waiting.stop()
    thread.join()
    assert seen == ["notice"]


def test_a_service_that_does_not_answer_has_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    assert not CLOUDS["aws"]()


def test_an_unknown_cloud_is_refused() -> None:
    with pytest.raises(InputError, match="unknown cloud 'moon': --spot-notices takes aws, azure, gcp"):
        SpotNotices("moon")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_leaves_at_the_notice(tmp_path: Path, metadata: type[Metadata]) -> None:
    """The command as a process. It gets the variable with the address of the metadata service."""
    assert "AWS_EC2_METADATA_SERVICE_ENDPOINT" in os.environ
    broker = Program(tmp_path, "broker", "broker", "--no-web", "--listen", "127.0.0.1:0")
    ticket = broker.until(r"farflung join (\S+)\n")[1]
    worker = Program(tmp_path, "w", "join", ticket, "--name", "w", "--listen", "127.0.0.1:0", "--spot-notices", "aws")
    worker.until("joined the broker at")
    metadata.ends = True
    text = worker.ends_cleanly(0)
    assert "the cloud ends this machine soon: its part of a run moves to other workers" in text
    assert "w: left" in text
    broker.process.terminate()
    broker.ends()
