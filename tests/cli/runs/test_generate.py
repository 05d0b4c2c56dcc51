"""``farflung generate``: the text of a checkpoint's model, how it is drawn, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farflung.api.generation import Sampling
from farflung.cli.main import main
from tests.support.records.written_checkpoints import ARGS, checkpoint


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as over:
        main(["generate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(over.value.code or 0), out, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run ``run-1`` of this machine's broker."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    return tmp_path / "broker" / "runs" / "run-1"


def greedy(module: torch.nn.Module, prompt: str, count: int) -> bytes:
    """What a plain loop over the module writes, the last eight bytes in view."""
    tokens = list(prompt.encode())
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(module(torch.tensor([tokens[-8:]]))[0, -1].argmax()))
    return bytes(tokens)


def printed(text: bytes) -> str:
    shown = text.decode(errors="replace").expandtabs(4)
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in shown)


def test_greedy_text_is_that_of_a_plain_loop(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(home, 2)
    module = checkpoint(home, 4)
    code, out, err = run(capsys, "run-1", "--prompt", "def f", "--temperature", "0", "--max-tokens", "20")
    assert code == 0
    assert err == "run-1: the checkpoint after step 4\n"
    assert (
        out.replace("\N{REPLACEMENT CHARACTER}", "")
        == printed(greedy(module, "def f", 20)).replace("\N{REPLACEMENT CHARACTER}", "") + "\n"
    )
    code, older, err = run(capsys, home, "--prompt", "def f", "--temperature", "0", "--step", "2")
    assert "the checkpoint after step 2" in err
    assert older != out


def test_a_seed_gives_its_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(home, 4)
    texts = [run(capsys, "run-1", "--prompt", "a", "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    likeliest = run(capsys, "run-1", "--prompt", "a", "--temperature", "0")[1]
    assert run(capsys, "run-1", "--prompt", "a", "--top-k", "1")[1] == likeliest
    assert run(capsys, "run-1", "--prompt", "a", "--top-p", "1e-9")[1] == likeliest


def test_what_is_drawn() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.25, 0.05]))

    def drawn(**settings: float) -> set[int]:
        sampling, random = Sampling(temperature=1.0, **settings), np.random.default_rng(0)  # type: ignore[arg-type]
        return {sampling.draw(logits, random) for _ in range(200)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 2}
    assert drawn(top_p=0.7) == {0, 2}
    assert drawn(top_p=0.75) == {0, 2}
    assert drawn(top_p=0.76) == {0, 1, 2}
    counts = np.bincount([Sampling(temperature=1.0).draw(logits, np.random.default_rng(seed)) for seed in range(2000)]) / 2000
    assert np.abs(counts - [0.5, 0.2, 0.25, 0.05]).max() < 0.05
    assert Sampling(temperature=0.0).draw(logits, np.random.default_rng(0)) == 0


def test_characters_of_the_training_text(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.txt").write_text("äbc" * 99)
    data = {"kind": "text", "path": "corpus.txt", "tokenizer": "chars", "sequence": 8}
    checkpoint(home, 4, data=data)
    code, out, _ = run(capsys, "run-1", "--prompt", "bä", "--data", tmp_path, "--max-tokens", "30")
    assert code == 0
    assert re.fullmatch(r"bä[äbc]*\n", out)
    code, _, err = run(capsys, "run-1", "--prompt", "x", "--data", tmp_path)
    assert "character 'x' does not occur in the training text" in err
    code, _, err = run(capsys, "run-1", "--prompt", "b", "--data", tmp_path / "broker")
    assert code == 12
    assert "--data names the folder that the job's data paths start from" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--temperature", "-1"), "--temperature must be 0 or more, got -1: 0 takes the likeliest token"),
        (("--top-p", "0"), "--top-p must be above 0 and at most 1, got 0"),
        (("--top-k", "-2"), "--top-k must be 0 (all tokens) or more, got -2"),
        (("--seed", "-1"), "--seed must be 0 or more, got -1"),
        (("--max-tokens", "0"), "--max-tokens must be 1 or more, got 0"),
        (("--prompt", ""), "the prompt is empty: give --prompt at least one character"),
    ],
)
def test_wrong_settings(home: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str], says: str) -> None:
    checkpoint(home, 4)
    assert run(capsys, "run-1", "--prompt", "a", *options) == (2, "", f"farflung: {says}\n")


def test_runs_that_write_no_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(home, 4)
    code, _, err = run(capsys, "run-2", "--prompt", "a")
    assert code == 2
    assert "there is no run 'run-2'" in err
    assert "runs there: run-1; of a broker elsewhere: " in err
    empty = home.with_name("run-3")
    (empty / "checkpoints").mkdir(parents=True)
    err = run(capsys, "run-3", "--prompt", "a")[2]
    assert err.endswith("run-3/checkpoints holds no whole checkpoint: name a run, or a folder, that has one\n")
    checkpoint(home.with_name("run-4"), 1, model={"recipe": "cnn"})
    code, _, err = run(capsys, "run-4", "--prompt", "a")
    assert (code, err) == (
        2,
        "farflung: model.recipe = 'cnn' writes no text: it has no form 'generate', which gives logits of tokens\n",
    )
    checkpoint(home.with_name("run-5"), 1, model=None)
    assert (
        "this run was submitted by a Python program, so only that program has its model"
        in run(capsys, "run-5", "--prompt", "a")[2]
    )
    checkpoint(home.with_name("run-6"), 1, model={"recipe": "gpt", "args": {**ARGS, "width": 32}})
    assert "the checkpoint's" in (err := run(capsys, "run-6", "--prompt", "a")[2])
    assert "use the job's own recipe, unchanged" in err
    checkpoint(home.with_name("run-7"), 1, without="norm.weight")
    assert "the checkpoint lacks 'norm.weight' of the model" in run(capsys, "run-7", "--prompt", "a")[2]


def test_a_checkpoint_that_is_removed_meanwhile(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that trains keeps its newest checkpoints only: the one that was found first is gone, the next one is taken."""
    import shutil

    from farflung.frontends.text_model import TextModel

    checkpoint(home, 2)
    load = TextModel.load

    def removed(*given: Any) -> TextModel:
        if (home / "checkpoints" / "step-0000000002").is_dir():
            shutil.rmtree(home / "checkpoints" / "step-0000000002")
            checkpoint(home, 4)
        return load(*given)

    monkeypatch.setattr(TextModel, "load", removed)
    code, _, err = run(capsys, "run-1", "--prompt", "a")
    assert (code, err) == (0, "run-1: the checkpoint after step 4\n")
