"""A served model in this process: a service with its HTTP server, on the workers of a ``Loopback``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn

from farflung.api.submission import send_weights
from farflung.client.connection import Client
from farflung.serving.app import ServedApi, make_app
from farflung.serving.model import ServingOptions, open_model
from farflung.serving.server import listen
from farflung.serving.service import Service
from farflung.worker.membership import join
from tests.support.models.model_folders import save_model, save_tokenizer
from tests.support.network.quiet import PATIENCE
from tests.support.runs.loopback import Loopback

__all__ = ["ServedHere", "events", "greedy", "save_served", "serving"]

TWO = ServingOptions(slots=3, chunk=8, planner="equal_compute", workers=2)


@dataclass(frozen=True, kw_only=True)
class ServedHere:
    """``http`` talks to the server. ``said``: what the service told people."""

    http: httpx.Client
    service: Service
    said: list[str]

    def complete(self, prompt: str | list[int], most: int, **more: Any) -> dict[str, Any]:
        """A greedy completion, which does not end early."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": most,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def save_served(folder: Path, kind: str = "causal", **changes: Any) -> Any:
    """Save a model with random weights and a tokenizer of words; returns the model."""
    model = save_model(kind, folder, **{"vocab_size": 256, "max_position_embeddings": 128, **changes})
    save_tokenizer(folder)
    return model


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """What ``generate`` of transformers adds to ``prompt``."""
    with torch.no_grad():
        found = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    tokens: list[int] = found[0].tolist()
    return tokens[len(prompt) :]


def events(text: str) -> list[dict[str, Any]]:
    """The pieces of a stream, which ends as the API says."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@contextmanager
def serving(cluster: Loopback, source: Path, options: ServingOptions = TWO, *, key: str = "") -> Iterator[ServedHere]:
    """Serve ``source`` as ``tiny``."""
    client = Client(join(cluster.ticket("submit"), name="server", role="client", key=cluster.key))
    said: list[str] = []
    with open_model(source, "tiny", options, data=source, say=said.append) as model, listen("127.0.0.1:0", key) as listening:
        send_weights(client, model.bundle)
        service = Service(client, model.bundle, model.settings, said.append)
        api = ServedApi(model="tiny", context=model.context, tokenizer=model.tokenizer, service=service, key=key)
        server = uvicorn.Server(uvicorn.Config(make_app(api), log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listening],), name="http-of-the-test")
        try:
            service.start()
            service.wait_until_ready()
            thread.start()
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=PATIENCE) as http:
                yield ServedHere(http=http, service=service, said=said)
        finally:
            server.should_exit = True
            if thread.ident is not None:
                thread.join(PATIENCE)
            service.close()
