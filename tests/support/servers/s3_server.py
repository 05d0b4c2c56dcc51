"""A server that speaks S3, with an empty bucket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["s3_server"]


def s3_server(place: Path) -> Iterator[str]:
    """The URL of a folder in it; its log lies in ``place``."""
    found = os.environ.get("FARFLUNG_MOTO_SERVER") or shutil.which("moto_server")
    if found is None:
        pytest.skip("no moto_server: pip install farflung[s3-server], or set FARFLUNG_MOTO_SERVER to its path")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (place / "server.log").open("wb") as log:
        server = subprocess.Popen([found, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    patch = pytest.MonkeyPatch()
    for key, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        patch.setenv(key, value)
    try:
        while True:
            assert server.poll() is None, (place / "server.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                continue
        request = f"import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:{port}/bucket', method='PUT')).read()"
        subprocess.run([sys.executable, "-c", request], check=True)
        yield "s3://bucket/folder"
    finally:
        patch.undo()
        server.terminate()
        server.wait()
