"""Decoders of HTTP: requests to the dashboard's gate, fields of the what-if page, requests to the OpenAI API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from starlette.applications import Starlette

from benchmarks.faults.decoders.documents import example_job
from benchmarks.faults.decoders.target import Form, Target
from farflung.client.connection import Client
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.messages.submission import Bundle
from farflung.serving.app import ServedApi, make_app
from farflung.serving.scheduler import Settings
from farflung.serving.service import Service
from farflung.web.pages.what_if_scenario import scenario_of
from farflung.web.serving.gate import Gate
from farflung.web.serving.rights import Rights
from farflung.web.serving.sign_in import Role, SignIn

__all__ = ["TARGETS"]

_KINDS = ("http", "websocket")


class _NoTokenizer:
    """Refuses all texts, so nothing is computed."""

    ends = frozenset[int]()

    def encode(self, text: str) -> list[int]:
        """See ``ServedTokenizer``."""
        raise InputError("no text")

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """See ``ServedTokenizer``."""
        json.dumps(messages)
        raise InputError("no text")

    def decode(self, tokens: Sequence[int]) -> str:
        """See ``ServedTokenizer``."""
        return ""

    def spell(self, token: int) -> str:
        """See ``ServedTokenizer``."""
        return ""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@cache
def _api() -> Starlette:
    logits = SimpleNamespace(result="logits", spec=lambda ref: SimpleNamespace(shape=(8,)))
    bundle = cast(Bundle, SimpleNamespace(graph=logits))
    service = Service(cast(Client, None), bundle, Settings(sizes=(1,), slots=1), lambda line: None)
    return make_app(ServedApi(model="tiny", context=8, tokenizer=_NoTokenizer(), service=service))


@cache
def _signing() -> SignIn:
    return SignIn(b"s" * 32, b"k" * 32)


@cache
def _gate() -> Gate:
    return Gate(_page, Rights(_signing(), lambda: None, None), secure=False)


async def _page(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


def _ask(app: Any, value: Any) -> None:
    """``[kind, method, path, query, headers, body]`` as an HTTP server passes them on; an answer of 500 is a fault."""
    if not (isinstance(value, list) and len(value) == 6 and isinstance(value[4], dict)):
        raise InputError("not an input")
    kind, method, path, query, headers, body = value
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (method, path, query, body)]
    method, path, query, body = (text.encode("utf-8", "replace").decode() for text in texts)
    scope = {
        "type": _KINDS[kind % 2] if type(kind) is int else "http",
        "method": method[:20].upper(),
        "path": "/" + path.lstrip("/"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode("latin-1", "replace"), str(text).encode("utf-8", "replace")) for name, text in headers.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 7080),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }
    sent: list[MutableMapping[str, Any]] = []
    first = {"type": "websocket.connect"} if scope["type"] == "websocket" else {"type": "http.request", "body": body.encode()}

    async def receive() -> MutableMapping[str, Any]:
        return first

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    _loop().run_until_complete(app(scope, receive, send))
    for message in sent:
        if message.get("status") == 500:
            raise AssertionError("the server answers with an internal error")
        for name, text in message.get("headers", ()):
            if b"\n" in name + text or b"\r" in name + text:
                raise AssertionError(f"a header of the answer has several lines: {name!r} {text!r}")


def _gate_requests() -> Iterator[list[Any]]:
    cookie = f"farflung-7080={_signing().cookie(_signing().begin(Role.OWNER))}"
    here = {"host": "127.0.0.1:7080", "origin": "http://127.0.0.1:7080"}
    yield [0, "GET", "/", "", {**here, "cookie": cookie}, ""]
    yield [0, "GET", "/runs/a", "step=3", here, ""]
    yield [0, "GET", "/sign-in", "", here, ""]
    yield [0, "POST", "/sign-in", "", here, '{"token": "abc", "ticket": ""}']
    yield [0, "POST", "/sign-out", "", here, ""]
    yield [1, "GET", "/ws", "", {**here, "cookie": "farflung-7080=x.y"}, ""]


def _api_requests() -> Iterator[list[Any]]:
    head = {"host": "127.0.0.1:7080", "content-type": "application/json"}
    plain = {"model": "tiny", "prompt": "a", "max_tokens": 1, "stop": ["x"], "seed": 1, "logprobs": 1, "top_k": 2, "stream": True}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "temperature": 0.5}
    yield [0, "POST", "/v1/completions", "", head, plain]
    yield [0, "POST", "/v1/completions", "", head, {"model": "tiny", "prompt": ["a", "b"], "n": 2, "stream_options": {}}]
    yield [0, "POST", "/v1/chat/completions", "", head, chat]
    yield [0, "GET", "/v1/models/tiny", "", head, ""]
    yield [0, "GET", "/health", "", head, ""]


def _decode_fields(fields: Any) -> None:
    """The fields of the what-if page: texts by name, from a browser."""
    if not isinstance(fields, dict):
        raise InputError("not an input")
    scenario_of({name: str(value) for name, value in fields.items()}, *_scenario())


@cache
def _scenario() -> tuple[Any, Topology]:
    return example_job(), Topology.preset("local4-two-regions")


_FIELDS = {"ms:0": "5", "mbit:0": "100", "count:1": "2", "speed:1": "1.5", "memory:0": "8", "rent:0": "0.5", "ratio": "10"} | {
    "planner": "auto",
    "codec": "topk",
    "replicas": "2",
    "bandwidth": "1",
    "energy_price": "0.3",
}

TARGETS = {
    "gate": Target(decode=lambda value: _ask(_gate(), value), seeds=_gate_requests, form=Form.PARSED),
    "api": Target(decode=lambda value: _ask(_api(), value), seeds=_api_requests, form=Form.PARSED),
    "what-if": Target(decode=_decode_fields, seeds=lambda: [_FIELDS], form=Form.PARSED),
}
