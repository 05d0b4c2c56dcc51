"""What the API does with a request before the model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import httpx
import pytest

from farflung.client.connection import Client
from farflung.errors import InputError
from farflung.messages.submission import Bundle
from farflung.serving.app import ServedApi, make_app
from farflung.serving.scheduler import Settings
from farflung.serving.service import Service

PLAIN = {"model": "tiny", "prompt": "word5"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "word5"}]}


class Tokenizer:
    """Reports where it is called: with an error, so nothing is computed."""

    ends = frozenset[int]()

    def encode(self, text: str) -> list[int]:
        """See ``ServedTokenizer``."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise InputError("encoded beside the loop") from None
        raise InputError("encoded in the loop: all other requests wait")

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """See ``ServedTokenizer``."""
        return self.encode("")

    def decode(self, tokens: Sequence[int]) -> str:
        """See ``ServedTokenizer``."""
        return ""

    def spell(self, token: int) -> str:
        """See ``ServedTokenizer``."""
        return ""


def ask(path: str, *, key: str = "", url: str = "http://127.0.0.1:8000", **request: Any) -> httpx.Response:
    """The answer of an API whose service was never started."""
    service = Service(cast(Client, None), cast(Bundle, None), Settings(sizes=(1,), slots=1), lambda line: None)
    app = make_app(ServedApi(model="tiny", context=8, tokenizer=Tokenizer(), service=service, key=key))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url) as http:
            return await http.request("POST" if request.keys() & {"json", "content"} else "GET", path, **request)

    return asyncio.run(send())


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)])
def test_texts_become_tokens_beside_the_loop(path: str, body: dict[str, Any]) -> None:
    answer = ask(path, json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "encoded beside the loop")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:9000"])
def test_pages_of_other_origins_may_not_use_a_server_without_a_key(origin: str) -> None:
    headers = {"Origin": origin}
    for answer in (ask("/v1/completions", json=PLAIN, headers=headers), ask("/v1/models", headers=headers)):
        assert answer.status_code == 403
        text = f"pages of {origin!r} may not use this server, which has no key: start it with --api-key, and send that key"
        assert answer.json()["error"]["message"] == text
    assert ask("/v1/models", key="secret", headers={**headers, "Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""])
def test_a_server_without_a_key_answers_to_no_name_but_localhost(host: str) -> None:
    answer = ask("/v1/models", headers={"Host": host})
    assert answer.status_code == 403
    text = f"this server has no key, so it does not answer as {host!r}: use localhost or an IP address, or add --api-key"
    assert answer.json()["error"]["message"] == text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "[::1]"])
def test_programs_of_this_machine_may_use_a_server_without_a_key(host: str) -> None:
    assert ask("/v1/models", headers={"Host": host}).status_code == 200
    assert ask("/v1/models", headers={"Host": host, "Origin": f"http://{host.lower()}"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_is_json_by_its_header(kind: str) -> None:
    answer = ask("/v1/completions", content=b"{}", headers={"Content-Type": kind})
    assert answer.status_code == 415
    text = f"the body has Content-Type {kind!r}: send an object with application/json"
    assert answer.json()["error"]["message"] == text


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.serving.app.REQUEST_SECONDS", 0.05)

    async def halves() -> AsyncIterator[bytes]:
        yield b'{"model": '
        await asyncio.Event().wait()

    answer = ask("/v1/completions", content=halves(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        408,
        "the body did not come within 0.05 s: send it again over a faster connection",
    )
