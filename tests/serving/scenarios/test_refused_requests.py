"""What a server answers to requests that it cannot serve, and why a server cannot start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import FarflungError, InputError
from farflung.serving.model import ServingOptions
from farflung.serving.server import listen
from tests.support.runs.loopback import Loopback
from tests.support.servers.served_models import TWO, ServedHere, save_served, serving

PLAIN = {"model": "tiny", "prompt": "word5", "max_tokens": 2}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "word5"}], "max_tokens": 2}

#: (path, body, status, text of the error)
REFUSED: list[tuple[str, Any, int, str]] = [
    ("completions", PLAIN | {"model": "gpt-9"}, 404, "unknown model 'gpt-9': this server has 'tiny'"),
    (
        "completions",
        PLAIN | {"prompt": [5] * 120, "max_tokens": 9},
        400,
        "120 tokens of the prompt and 9 of the answer are more than the 128 of this server: shorten the prompt",
    ),
    ("completions", b"{'model'", 400, "the body is not JSON: Expecting property name enclosed in double quotes"),
    ("completions", b"\xff", 400, "the body is not JSON: "),
    ("completions", PLAIN | {"prompt": ""}, 400, "the prompt is empty: send at least one token"),
    ("completions", PLAIN | {"prompt": []}, 400, "0 prompts times n = 1 are 0 answers: ask for 1 to 128 at once"),
    ("completions", PLAIN | {"prompt": ["word5"] * 65, "n": 2}, 400, "65 prompts times n = 2 are 130 answers: ask for 1 to 128"),
    (
        "completions",
        PLAIN | {"prompt": "x" * ((1 << 20) + (1 << 13))},
        413,
        "the body has more than 1056768 bytes: send a shorter",
    ),
    ("completions", PLAIN | {"prompt": [5, 256]}, 400, "the prompt holds token 256: the model knows those from 0 to 255"),
    ("completions", PLAIN | {"temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
    ("completions", PLAIN | {"max_tokens": "2"}, 400, "max_tokens: Input should be a valid integer"),
    ("completions", PLAIN | {"logprobs": 21}, 400, "logprobs: Input should be less than or equal to 20"),
    ("completions", PLAIN | {"echo": True}, 400, "echo = True is not supported by this server: leave echo out"),
    ("completions", {"model": "tiny"}, 400, "prompt: Field required"),
    ("completions", [], 400, "the body: Input should be a valid dictionary"),
    ("chat/completions", CHAT | {"messages": []}, 400, "messages: List should have at least 1 item"),
    ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, 400, "is not supported by this server: leave tools out"),
    ("chat/completions", CHAT | {"messages": [{"content": "x"}]}, 400, "messages.0.role: Field required"),
    ("embeddings", PLAIN, 404, "POST /v1/embeddings is not served here: see /v1/models, /v1/completions"),
]


def test_bad_requests_get_one_clear_error_and_harm_nobody(two: Loopback, tmp_path: Path) -> None:
    save_served(tmp_path / "model")
    with serving(two, tmp_path / "model", key="secret") as served:
        check_keys(served)
        served.http.headers["Authorization"] = "Bearer secret"
        for path, body, status, text in REFUSED:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = served.http.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json; charset=utf-8"})
            assert answer.status_code == status, answer.text
            assert text in answer.json()["error"]["message"]
        assert served.http.get("/v1/completions").status_code == 405
        assert served.http.get("/v1/models/other").status_code == 404
        assert served.http.get("/v1/models/tiny").json()["max_model_len"] == 128
        assert served.http.get("/health").json() == {"status": "ready"}
        assert served.complete("word5", 2)["usage"]["completion_tokens"] == 2


def check_keys(served: ServedHere) -> None:
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic secret"}):
        answer = served.http.post("/v1/completions", json=PLAIN, headers=headers)
        assert answer.status_code == 401
        assert "send the server's key as a bearer token" in answer.json()["error"]["message"]
    assert served.http.get("/v1/models").status_code == 401


def test_without_memory_for_the_model_the_server_does_not_start(home: Path, tmp_path: Path) -> None:
    save_served(tmp_path / "model")
    with (
        Loopback(home, 2, memory={"a": 3e4, "b": 3e4}) as cluster,
        pytest.raises(FarflungError, match="memory"),
        serving(cluster, tmp_path / "model"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"slots": 0}, "--slots must be from 1 to 1024, got 0"),
        ({"chunk": 0}, "--chunk must be from 1 to 8192, got 0"),
        ({"context": 1}, "--context must be 2 or more, or 0 for that of the model, got 1"),
    ],
)
def test_options_out_of_their_range_are_refused(changes: dict[str, int], text: str) -> None:
    with pytest.raises(InputError, match=text):
        ServingOptions(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("8000", "--listen '8000' is not an address: write HOST:PORT, e.g. 127.0.0.1:8000"),
        ("127.0.0.1:99999", "is not an address"),
        ("0.0.0.0:0", "other machines can reach this address, so clients need a key; add --api-key"),
    ],
)
def test_addresses_that_a_server_does_not_listen_at(address: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        listen(address, "")
    with listen("127.0.0.1:0", "") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="Address already in use; choose another address or port"):
            listen(f"127.0.0.1:{port}", "")


def test_a_context_beyond_the_model_is_refused(two: Loopback, tmp_path: Path) -> None:
    save_served(tmp_path / "model")
    text = "--context 500 is more than the 128 positions of the model: choose at most 128"
    with pytest.raises(InputError, match=text), serving(two, tmp_path / "model", replace(TWO, context=500)):
        pass
