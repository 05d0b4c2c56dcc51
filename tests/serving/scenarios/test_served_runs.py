"""A run's checkpoint is served with its own tokenizer, by the command line; ``farflung stop`` ends a server."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from farflung.cli.main import main
from farflung.client.connection import Client
from farflung.serving.model import open_model
from farflung.serving.server import listen, serve_model
from farflung.serving.service import Service
from farflung.worker.membership import join
from tests.support.commands.command_processes import Program
from tests.support.network.quiet import until
from tests.support.records.written_checkpoints import checkpoint
from tests.support.runs.loopback import Loopback
from tests.support.servers.served_models import TWO, save_served, serving


def greedy_bytes(module: torch.nn.Module, prompt: str, count: int) -> list[int]:
    """What a plain loop over the module adds."""
    tokens = list(prompt.encode())
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(np.argmax(module(torch.tensor([tokens]))[0, -1].numpy())))
    return tokens[len(prompt.encode()) :]


def test_a_checkpoint_of_a_run_is_served(two: Loopback, tmp_path: Path) -> None:
    module = checkpoint(tmp_path / "run-1", 3)
    with serving(two, tmp_path / "run-1") as served:
        assert served.complete("ab", 6)["choices"][0]["token_ids"] == greedy_bytes(module, "ab", 6)
        answer = served.http.post("/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "a"}]})
        assert "no chat template" in answer.json()["error"]["message"]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[Program]]:
    made: list[Program] = []
    yield made
    for program in made:
        program.process.kill()
        program.process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_of_the_page(tmp_path: Path, programs: list[Program]) -> None:
    """A broker, two workers and a server as processes; a completion by HTTP, Ctrl-C, and a stop by its name."""
    save_served(tmp_path / "model")
    start = lambda name, *words: programs.append(Program(tmp_path, name, *words)) or programs[-1]  # noqa: E731
    broker = start("broker", "broker", "--listen", "127.0.0.1:0", "--home", str(tmp_path / "broker"))
    ticket = broker.until(r"farflung join (\S+)\n")[1]
    submit = broker.until(r"--ticket (\S+)\n")[1]
    for name in "ab":
        start(name, "join", ticket, "--name", name, "--listen", "127.0.0.1:0").until("joined the broker at")
    serve = ("serve", str(tmp_path / "model"), "--ticket", submit, "--listen", "127.0.0.1:0", "--planner", "equal_compute")
    server = start("server", *serve, "--workers", "2", "--name", "tiny")
    url = server.until(r"serving tiny at (http://\S+/v1) ")[1]
    body = {"model": "tiny", "prompt": "word5 word6", "max_tokens": 5, "temperature": 0}
    assert httpx.post(f"{url}/completions", json=body, timeout=60).json()["choices"][0]["finish_reason"] in ("length", "stop")
    server.kill(signal.SIGINT)
    assert server.ends() == 0, server.text
    terminated = start("terminated", *serve, "--workers", "2", "--name", "tiny")
    terminated.until(r"serving tiny at")
    terminated.kill(signal.SIGTERM)
    assert terminated.ends() == 128 + signal.SIGTERM, terminated.text  # and has freed the workers for the next one
    again = start("again", *serve, "--workers", "2", "--name", "tiny")
    again.until(r"serving tiny at")
    run = re.findall(r"run (serve-\w+): submitted", broker.text)[-1]
    start("stop", "stop", run, "--home", str(tmp_path / "broker")).ends()
    assert again.ends() == 0, again.text
    assert "the model is not served any more" in again.text


@pytest.mark.timeout(120)
def test_a_run_that_ends_before_the_server_listens_ends_the_server(
    two: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_served(tmp_path / "model")
    ready = Service.wait_until_ready

    def over(self: Service) -> None:
        ready(self)
        two.client.stop(self._bundle.run, now=True)
        until(lambda: self.ended is not None)

    monkeypatch.setattr(Service, "wait_until_ready", over)
    client = Client(join(two.ticket("submit"), name="server", role="client", key=two.key))
    say: list[str] = []
    with (
        open_model(tmp_path / "model", "tiny", TWO, data=tmp_path, say=say.append) as model,
        listen("127.0.0.1:0", "") as listening,
    ):
        serve_model(client, model, listening, "", say.append)
    assert say[-1] == "the model is not served any more: stopped"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("farflung.extras.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["serve", "model"])
    assert "farflung serve needs starlette, which is not installed here: pip install 'farflung[serve]'" in capsys.readouterr().err
