"""A model's folder on two workers: the tokens are those of transformers on one machine, however requests arrive."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import ConnectionLost
from farflung.messages.serving import TokenItem
from farflung.step.evaluation import serving as steps
from farflung.worker.training_run import TrainingRun
from tests.support.runs.loopback import Loopback
from tests.support.runs.worker_deaths import vanish
from tests.support.servers.served_models import ServedHere, events, greedy, save_served, serving


def prompt_of(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 256, length)]


def tokens_of(body: dict[str, Any]) -> list[int]:
    """The tokens of a completion."""
    found: list[int] = body["choices"][0]["token_ids"]
    return found


def test_completions_streams_and_chats_are_those_of_one_machine(two: Loopback, tmp_path: Path) -> None:
    model = save_served(tmp_path / "model", eos_token_id=None, num_hidden_layers=3)
    with serving(two, tmp_path / "model") as served:
        check_tokens(served, model)
        check_stream(served, model)
        check_chat(served, model)
        check_many_at_once(served, model)
    assert served.service.ended is None or "stopped" in str(served.service.ended)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("GPT2LMHeadModel", {}),
        ("MistralForCausalLM", {"num_key_value_heads": 1, "sliding_window": 6}),
        ("MixtralForCausalLM", {"num_key_value_heads": 1, "num_local_experts": 4}),
        ("Qwen2ForCausalLM", {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
        ("Qwen3ForCausalLM", {"num_key_value_heads": 1, "head_dim": 16}),
    ],
)
def test_other_architectures_give_the_tokens_of_one_machine(
    two: Loopback, tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """With windows that are shorter than the prompts."""
    model = save_served(tmp_path / "model", kind, eos_token_id=None, **changes)
    with serving(two, tmp_path / "model") as served:
        check_tokens(served, model)
        check_many_at_once(served, model)


def check_tokens(served: ServedHere, model: object) -> None:
    for length in (1, 5, 8, 21):  # of one chunk, and of several
        prompt = prompt_of(length, length)
        body = served.complete(prompt, 12, logprobs=2)
        assert tokens_of(body) == greedy(model, prompt, 12)
        assert body["usage"] == {"prompt_tokens": length, "completion_tokens": 12, "total_tokens": length + 12}
        assert body["choices"][0]["finish_reason"] == "length"
        shown = body["choices"][0]["logprobs"]
        assert [max(one.values()) for one in shown["top_logprobs"]] == shown["token_logprobs"], "the most likely is drawn"
        assert all(len(one) == 2 for one in shown["top_logprobs"])


def check_stream(served: ServedHere, model: object) -> None:
    whole = served.complete("word5 word9", 9)
    body = {"model": "tiny", "prompt": "word5 word9", "max_tokens": 9, "temperature": 0, "ignore_eos": True, "stream": True}
    answer = served.http.post("/v1/completions", json={**body, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(answer.text)
    assert len(pieces) == 9
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole["choices"][0]["text"]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 8 + ["length"]
    assert last["usage"] == whole["usage"]
    stop = whole["choices"][0]["text"].split()[3]
    cut = served.complete("word5 word9", 9, stop=stop)["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["choices"][0]["text"].partition(stop)[0], "stop")


def check_chat(served: ServedHere, model: object) -> None:
    messages = [{"role": "user", "content": "word3 word4"}, {"role": "user", "content": [{"type": "text", "text": "word7"}]}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 1}
    more = {"ignore_eos": True, "return_token_ids": True}
    choice = served.http.post("/v1/chat/completions", json={**body, **more}).json()["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["token_ids"] == greedy(model, [3, 4, 7], 6)
    assert len(choice["logprobs"]["content"]) == 6
    text = served.http.post("/v1/chat/completions", json={**body, "ignore_eos": True, "stream": True}).text
    deltas = [piece["choices"][0]["delta"] for piece in events(text)]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]


def check_many_at_once(served: ServedHere, model: object) -> None:
    """More requests than slots, of different lengths, and drawn tokens that a seed repeats."""
    prompts = [prompt_of(length, seed) for seed, length in enumerate((3, 17, 9, 30, 1, 12, 5))]
    found: dict[int, list[int]] = {}

    def ask(index: int) -> None:
        found[index] = tokens_of(served.complete(prompts[index], 10))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: greedy(model, prompt, 10) for index, prompt in enumerate(prompts)}
    drawn = [served.complete(prompts, 8, temperature=0.9, top_p=0.95, seed=seed, n=2)["choices"] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [choice["index"] for choice in drawn[0]] == list(range(14))
    assert drawn[0][0]["text"] != drawn[0][1]["text"], "the choices of a prompt draw different tokens"


@pytest.mark.timeout(240)
def test_the_death_of_a_stage_costs_prefixes_and_no_request(two: Loopback, tmp_path: Path) -> None:
    """A third worker waits. The second one dies in the middle of three answers."""
    model = save_served(tmp_path / "model", eos_token_id=None)
    prompts = [prompt_of(length, length) for length in (4, 11, 2)]
    with serving(two, tmp_path / "model") as served:
        two.add("c")
        body = {
            "model": "tiny",
            "prompt": prompts,
            "max_tokens": 60,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        found: list[list[int]] = [[], [], []]
        with served.http.stream("POST", "/v1/completions", json=body) as answer:
            for number, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
                choice = events(line + "\n\ndata: [DONE]\n\n")[0]["choices"][0]
                found[choice["index"]] += choice["token_ids"]
                if number == 20:
                    vanish(two, "b")
        assert found == [greedy(model, one, 60) for one in prompts]
        assert tokens_of(served.complete(prompts[0], 5)) == greedy(model, prompts[0], 5), "the server lives on"


@pytest.mark.timeout(240)
def test_a_lost_link_from_the_server_to_a_stage_costs_no_request(two: Loopback, tmp_path: Path) -> None:
    """The first stage never sends to the server, so only the loss itself tells that a batch may be missing."""
    model = save_served(tmp_path / "model", eos_token_id=None)
    prompt = prompt_of(4, 4)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with serving(two, tmp_path / "model") as served:
        found: list[int] = []
        with served.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            for number, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
                found += events(line + "\n\ndata: [DONE]\n\n")[0]["choices"][0]["token_ids"]
                if number == 20:
                    worker = two.workers["a"]
                    assert isinstance(worker.part, TrainingRun)
                    assert worker.part.executor is not None
                    link = worker.endpoint.link_to(worker.part.executor.setup.submitter, incoming=False)
                    link.fail(ConnectionLost("lost the server: a cable was cut"))
        assert found == greedy(model, prompt, 60)
        assert any("a cable was cut" in line for line in served.said), "a new attempt sends all tokens again"


def test_a_worker_that_draws_a_token_that_the_model_does_not_have_is_named(
    two: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token would be sent to all workers with the next batch, and the error of an operator would name none of them."""
    save_served(tmp_path / "model", eos_token_id=None)
    monkeypatch.setattr(steps, "TokenItem", lambda *, token, **rest: TokenItem(token=256, **rest))
    with serving(two, tmp_path / "model") as served:
        answer = served.http.post("/v1/completions", json={"model": "tiny", "prompt": "word5"})
    assert answer.status_code == 503
    text = answer.json()["error"]["message"]
    assert re.search(r"the model is not served any more: .*[ab] drew token 256: the model knows those from 0 to 255", text)
