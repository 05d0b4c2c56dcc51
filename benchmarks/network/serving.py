"""``benchmarks serving``: a language model over three machines that are 20 ms apart, by one request and by eight.

``farflung serve`` splits a GPT-2 with random weights over three worker processes, whose links are as far as the topology says.
Greedy tokens are compared with those of ``transformers`` on one machine. The speed of one request is compared with what links and
arithmetic alone would allow: one over the sum of the latencies between the stages and of the seconds that the stages compute for
a token. The link between the server and the workers is that of this machine.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.chaos.local_cluster import LocalCluster
from farflung.checkpoint.model_files import bytes_tokenizer
from farflung.child_processes import end_all
from farflung.clock import monotonic
from farflung.engines.base import EngineSettings, MicroBatch
from farflung.engines.registry import get_engine
from farflung.errors import TrainingError
from farflung.frontends.recipes.base import CacheShape
from farflung.frontends.recipes.registry import load_recipe
from farflung.graph.cut import cut

__all__ = ["Serving", "ServingSettings"]

_WORKERS = ("one", "two", "three")
_PATIENCE = 600.0
_MANY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(Settings):
    """A GPT-2 by ``layers`` and ``width``. ``latency_ms``: between two machines. ``tokens``: of each timed answer.

    ``compared``: greedy tokens that are compared, ``prompts``: in how many answers.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 50257
    latency_ms: float = 20.0
    mbps: float = 1000.0
    tokens: int = 64
    repeats: int = 3
    compared: int = 1000
    prompts: int = 10


class Serving:
    """Tokens per second of one request and of eight, and whether greedy tokens are those of one machine."""

    name = "serving"
    summary = "a served model over three machines 20 ms apart: tokens per second, and equality with one machine"

    def settings(self, quick: bool) -> ServingSettings:
        """Quick: a tiny model, and few tokens."""
        if not quick:
            return ServingSettings()
        return ServingSettings(
            quick=True, layers=3, width=32, heads=2, vocab=256, latency_ms=5.0, tokens=6, repeats=1, compared=20, prompts=2
        )

    def run(self, settings: Settings, say: Say) -> Report:
        """Serve the model and ask.

        Raises:
            FarflungError: a process ends early, or a request fails.
        """
        assert isinstance(settings, ServingSettings)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            model = _save(folder, settings)
            say("computing tokens on one machine")
            compute = _compute_seconds(folder, settings)
            prompts = _prompts(settings)
            expected = [_greedy(model, prompt, settings.compared // settings.prompts) for prompt in prompts]
            with _served(Path(place), folder, settings) as http:
                say("comparing tokens")
                found = [_ask(http, prompt, len(tokens))[0] for prompt, tokens in zip(prompts, expected, strict=True)]
                say("one request")
                single = statistics.median(_rate(http, prompts[:1], settings) for _ in range(settings.repeats))
                say(f"{_MANY} requests")
                several = statistics.median(_rate(http, _several(prompts), settings) for _ in range(settings.repeats))
        return _report(settings, compute, _equal(found, expected), (single, several))


def _save(folder: Path, settings: ServingSettings) -> Any:
    """Save a GPT-2 with random weights and a tokenizer of bytes, and return it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    config = GPT2Config(
        vocab_size=settings.vocab,
        n_layer=settings.layers,
        n_embd=settings.width,
        n_head=settings.heads,
        n_positions=1024,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = GPT2LMHeadModel(config)
    model.eval()
    with torch.no_grad():  # with the usual small weights all positions have nearly the same likeliest token
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    for name, data in bytes_tokenizer().items():
        (folder / name).write_bytes(data)
    return model


def _prompts(settings: ServingSettings) -> list[list[int]]:
    random = np.random.default_rng(settings.seed)
    return [[int(token) for token in random.integers(0, settings.vocab, 8 + 9 * index)] for index in range(settings.prompts)]


def _several(prompts: Sequence[list[int]]) -> list[list[int]]:
    return [prompts[index % len(prompts)] for index in range(_MANY)]


def _greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    import torch

    with torch.no_grad():
        given = torch.tensor([prompt])
        whole = torch.ones_like(given)  # else the token for padding would be masked where a prompt has it
        found = model.generate(given, attention_mask=whole, max_new_tokens=count, do_sample=False, pad_token_id=0)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def _compute_seconds(folder: Path, settings: ServingSettings) -> float:
    """The median of the seconds that the engine computes for one token behind some others, all stages together."""
    recipe = load_recipe("hf", {"folder": str(folder), "sequence": 2})
    assert recipe.serve is not None
    graph = recipe.capture(recipe.serve(CacheShape(slots=1, context=256)), 1)
    engine = get_engine("torch")
    engine.set_threads(settings.threads)
    runner = engine.open(cut(graph, [(0, len(graph.ops))])[0], EngineSettings(training=False))
    runner.initialize([state.name for state in graph.states])
    seconds = []
    for position in range(settings.tokens):
        row = np.full((1, 1), position)
        inputs = {"tokens": row * 0, "positions": row, "slots": row[0] * 0, "wanted": row[0] * 0}
        begin = monotonic()
        runner.forward(MicroBatch(0, position), {}, inputs)
        seconds.append(monotonic() - begin)
    return statistics.median(seconds)


@contextmanager
def _served(place: Path, folder: Path, settings: ServingSettings) -> Iterator[httpx.Client]:
    """``farflung serve`` on three workers; a client of its API."""
    topology = place / "topology.toml"
    devices = "".join(
        f'[[device]]\nname = "{name}"\nregion = "{name}"\nmemory = "4 GB"\nspeed = "20 GFLOP/s"\n' for name in _WORKERS
    )
    links = f'[default]\nlatency = "{settings.latency_ms} ms"\nbandwidth = "{settings.mbps} Mbit/s"\n'
    topology.write_text(f'name = "apart"\n{links}{devices}', encoding="utf-8")
    with LocalCluster(place / "cluster", _WORKERS) as cluster:
        cluster.client().close()
        log = place / "server.log"
        command = [sys.executable, "-m", "farflung", "serve", str(folder), "--ticket", cluster.ticket, "--name", "model"]
        command += ["--listen", "127.0.0.1:0", "--planner", "equal_compute", "--workers", "3", "--context", "512"]
        command += ["--topology", str(topology), "--emulate", "--threads", str(settings.threads)]
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - this program
        try:
            with httpx.Client(base_url=_url(server, log), timeout=_PATIENCE) as http:
                yield http
        finally:
            end_all((server,), 60.0)


def _url(server: subprocess.Popen[bytes], log: Path) -> str:
    until = monotonic() + _PATIENCE
    while (found := re.search(r"at (http://\S+/v1) ", log.read_text(encoding="utf-8", errors="replace"))) is None:
        if monotonic() > until or server.poll() is not None:
            raise TrainingError(f"the server did not start: {log.read_text(encoding='utf-8', errors='replace')[-500:]}")
        try:
            server.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    return found[1]


def _ask(http: httpx.Client, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """The tokens of a greedy answer, and when each piece of it came (seconds)."""
    body = {"model": "model", "prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True, "return_token_ids": True}
    tokens: list[int] = []
    times: list[float] = []
    with http.stream("POST", "/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith('data: {"error"') or answer.status_code != 200:
                raise TrainingError(f"a request failed: {line[:500]}")
            if line.startswith("data: {"):
                times.append(monotonic())
                tokens += [int(one) for one in re.findall(r"\d+", line.partition('"token_ids": [')[2].partition("]")[0])]
    return tokens, times


def _rate(http: httpx.Client, prompts: Sequence[list[int]], settings: ServingSettings) -> float:
    """Tokens per second of answers to ``prompts`` at the same time, from when each has its first token."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda prompt: _ask(http, prompt, settings.tokens + 1), prompts))
    began, ended = max(times[0] for _, times in found), max(times[-1] for _, times in found)
    return sum(time > began for _, times in found for time in times) / (ended - began)


def _equal(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> int:
    return sum(
        one == other for tokens, wanted in zip(found, expected, strict=True) for one, other in zip(tokens, wanted, strict=True)
    )


def _report(settings: ServingSettings, compute: float, equal: int, rates: tuple[float, float]) -> Report:
    single, several = rates
    latencies = (len(_WORKERS) - 1) * settings.latency_ms / 1e3
    bound = 1.0 / (latencies + compute)
    judged = not settings.quick
    checks = (
        Check(
            name="greedy tokens equal to transformers",
            target=f"{settings.compared} of {settings.compared}",
            measured=str(equal),
            passed=equal == settings.compared,
        ),
        Check(
            name="tokens/s of one request over 1 / (latencies + compute)",
            target="at least 0.9",
            measured=f"{single / bound:.2f}",
            passed=single / bound >= 0.9 if judged else None,
        ),
        Check(
            name=f"tokens/s of {_MANY} requests over one",
            target="at least 5",
            measured=f"{several / single:.2f}",
            passed=several / single >= 5.0 if judged else None,
        ),
    )
    figures = {
        "equal_tokens": equal,
        "compute_seconds": compute,
        "latency_seconds": latencies,
        "bound_tokens_per_second": bound,
        "single_tokens_per_second": single,
        "several_tokens_per_second": several,
    }
    rows = [
        ("one request", single, bound, single / bound),
        (f"{_MANY} requests", several, _MANY * bound, several / (_MANY * bound)),
    ]
    return Report(figures=figures, columns=("load", "tokens/s", "bound", "ratio"), rows=rows, checks=checks)
