"""Weights behind a URL: single tensors by ranges, from a real HTTP server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from farflung.checkpoint import Weights
from farflung.data.base import Place
from farflung.errors import CheckpointError, DataError
from farflung.worker.first_states import weights_path
from tests.support.models.model_folders import save_model

pytest.importorskip("obstore")


class Files(ThreadingHTTPServer):
    """Serves ``folder``, and counts the bytes of the answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sent = folder, 0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Files

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        start, stop = 0, len(data)
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.server.sent += stop - start
            self.wfile.write(data[start:stop])

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    with Files(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, name="files")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_tensors_are_fetched_by_ranges(files: Files, tmp_path: Path) -> None:
    model = save_model("causal", tmp_path / "model")
    weights = Weights.open(f"{files.url}/model")
    name = "model.layers.1.mlp.up_proj.weight"
    before = files.sent
    found = weights.read(name)
    assert np.array_equal(found, model.state_dict()[name].numpy())
    assert files.sent - before < found.nbytes + 4000  # the header of one file, and the tensor
    assert set(weights.names) == set(model.state_dict()) - {"lm_head.weight"} | ({"lm_head.weight"} & set(weights.names))


def test_a_single_file(files: Files, tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(3.0)}, tmp_path / "model.safetensors")
    for url in (files.url, f"{files.url}/model.safetensors"):
        assert Weights.open(url).read("a").tolist() == [0, 1, 2]


def test_what_is_not_there(files: Files) -> None:
    with pytest.raises(CheckpointError, match=r"http://.* holds no model\.safetensors \(or its index\): name a safetensors file"):
        Weights.open(files.url)
    with pytest.raises(CheckpointError, match=r"http://.*/other\.safetensors does not exist: check weights\.path"):
        Weights.open(f"{files.url}/other.safetensors")


def test_jobs_do_not_make_a_confined_machine_fetch(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"weights\.path = 's3://a/b' is a URL, and jobs may not make this machine fetch files"):
        weights_path("s3://a/b", Place(base=tmp_path, cache=tmp_path, confined=True))
    assert weights_path("s3://a/b", Place(base=tmp_path, cache=tmp_path)) == "s3://a/b"
