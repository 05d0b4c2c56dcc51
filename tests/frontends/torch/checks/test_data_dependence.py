"""A forward that depends on the values of tensors, or draws Python's random numbers, is refused by its line, without a dump."""

from __future__ import annotations

import importlib.util
import random
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung import train
from farflung.api import capture
from farflung.cli.main import main
from farflung.errors import CaptureError, FarflungError

MODEL = """
import random

import numpy as np
import torch
from torch import nn

RANDOM, RANDOMS = random.Random(2), [np.random.default_rng(2), np.random.RandomState(2)]
SYSTEM = random.SystemRandom()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.draws, self.own = random.Random(1), np.random.default_rng(1)
        self.deep = {{"a": [random.Random(1)]}}

    def body(self, h):
        {first}
            {second}
        return h

    def forward(self, x):
        h = self.body(self.linear(x))
        return h.square().mean()


def make():
    return Model()


def example_inputs(batch):
    return (torch.zeros(batch, 4),)
"""
LINE = 20
BRANCH = "use torch.where(condition, a, b) to choose between values, or remove the check"
LAYERDROP = (
    "set layerdrop=0 (or encoder_layerdrop=0 and decoder_layerdrop=0) in the configuration: "
    "a graph has the same layers in each step"
)
LOOP = "repeat a fixed number of times, with torch.where(done, x, new) in the body"
SCALAR = "keep the value a tensor and compute with it (no .item(), .tolist(), .numpy(), int() or float(); torch.gather to index)"
SHAPE = "keep shapes fixed: torch.where(mask, x, 0) in place of x[mask], or torch.topk with a fixed capacity"

DEPENDENT: dict[str, tuple[str, str]] = {
    "if h.sum() > 0:": ("h = -h", BRANCH),
    "if h.sum() < (layerdrop := 0.1):": ("h = layerdrop * h", LAYERDROP),
    "while (h.abs() > 1).any():": ("h = h / 2", LOOP),
    "for _ in range(h.argmax()):": ("h = h + 1", LOOP),
    "h = h * h.sum().item() + (": ("1)", SCALAR),
    "h = h * int(h.sum()) + (": ("1)", SCALAR),
    "h = h * float(h[0, 0]) + (": ("1)", SCALAR),
    "h = h * h.tolist()[0][0] + (": ("1)", SCALAR),
    "h = h * h.detach().numpy()[0, 0] + (": ("1)", SCALAR),
    "h = h[:, : h.argmax()] + (": ("1)", SCALAR),
    "h = [h, -h][h[0].argmax()] + (": ("1)", SCALAR),
    "h = h[h > 0] + (": ("1)", SHAPE),
    "h = h[h.nonzero()[:, 0]] + (": ("1)", SHAPE),
    "h = torch.masked_select(h, h > 0) + (": ("1)", SHAPE),
    "h = torch.unique(h) + (": ("1)", SHAPE),
}
DRAWS = [
    "h = h * random.random() + (",
    "h = h[:, random.sample(range(4), 2)] + (",
    "h = h * self.draws.random() + (",
    "h = h * np.random.rand() + (",
    "h = h * float(np.random.normal()) + (",
    "h = h * self.own.random() + (",
    "h = h * np.random.default_rng().random() + (",
    "h = h * self.deep['a'][0].random() + (",
    "h = h * RANDOM.random() + (",
    "h = h * RANDOMS[0].normal() + (",
    "h = h * RANDOMS[1].rand() + (",
    "h = h * SYSTEM.random() + (",
    "h = h * SYSTEM.randrange(4) + (",
    "h = h * random.Random().random() + (",
    "h = h * random.SystemRandom().random() + (",
    "h = self.linear(h).square().mean() * random.uniform(0.5, 1.0) + (",
    "h = self.linear(h).square().mean() * np.random.rand() + (",
    "h = self.linear(h * random.random()) + (",
    "h = h.square() * random.choice([1, 2]) + self.linear(h) + (",
]
FROZEN = (
    "draws random numbers of Python or NumPy, and every step would use the same ones: "
    "use torch (torch.rand, torch.randint), whose numbers are drawn anew in each micro-batch"
)


def model(folder: Path, first: str, second: str = "1)") -> nn.Module:
    file = folder / "model.py"
    file.write_text(MODEL.format(first=first, second=second))
    spec = importlib.util.spec_from_file_location(f"model_{abs(hash((first, folder)))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: nn.Module = module.make()
    return found


def refused(capfd: pytest.CaptureFixture[str], made: nn.Module, call: Any = None) -> str:
    with pytest.raises(CaptureError) as caught:
        (call or (lambda: capture(made, (torch.randn(3, 4),))))()
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "torch says nothing of its own"
    return str(caught.value)


@pytest.mark.parametrize("first", DEPENDENT)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_data_dependence_is_refused_by_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], first: str, device: str
) -> None:
    second, remedy = DEPENDENT[first]
    text = refused(capfd, model(tmp_path, first, second).to(device))
    assert text == f"model.py:{LINE}: {first} depends on tensor data, and a graph has no values: {remedy}"


@pytest.mark.parametrize("first", DRAWS)
def test_random_numbers_of_python_are_refused_by_their_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], first: str
) -> None:
    before = sys.gettrace()
    assert refused(capfd, model(tmp_path, first)) == f"model.py:{LINE}: {first} {FROZEN}"
    assert sys.gettrace() is before


ALLOWED = [
    "h = h * torch.tensor(3.0).item() + (",
    "h = h * torch.rand(()) + (",
    "h = torch.where(h > 0, h, 0.0) + (",
    "h = h * random.Random(1).random() + (",
    "h = h * np.random.default_rng(1).random() + (",
]


@pytest.mark.parametrize("first", ALLOWED)
def test_numbers_that_the_data_do_not_decide_are_allowed(tmp_path: Path, first: str) -> None:
    assert capture(model(tmp_path, first), (torch.randn(3, 4),)).ops


def test_draws_outside_of_the_forward_are_nobodys_business(tmp_path: Path) -> None:
    """Another thread's numbers, and those of the constructor."""
    before = random.getstate(), np.random.get_state(legacy=False)
    capture(model(tmp_path, "h = h + ("), (torch.randn(3, 4),))
    assert random.getstate() == before[0]
    assert str(np.random.get_state(legacy=False)) == str(before[1])


def test_a_line_of_a_library_names_the_line_that_called_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.frontends.torch.checks import data_dependence

    library = tmp_path / "library"
    library.mkdir()
    (library / "layers.py").write_text("def halve(h):\n    return h / 2 if h.max() > 1 else h\n")
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setattr(data_dependence, "_LIBRARIES", (str(library),))
    made = model(tmp_path, "from layers import halve; h = halve(h) + (")
    with pytest.raises(
        CaptureError, match=rf"^layers.py:2 \(called from model.py:{LINE}\): return h / 2 if h.max\(\) > 1 else h dep"
    ):
        capture(made, (torch.randn(3, 4),))


def test_train_says_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = model(tmp_path, "if h.sum() > 0:", "h = -h")
    text = refused(capfd, made, lambda: train(made, lambda step, index: (torch.zeros(3, 4),), steps=1))
    assert text == f"model.py:{LINE}: if h.sum() > 0: depends on tensor data, and a graph has no values: {BRANCH}"


JOB = """
steps = 1
micro_batch_sizes = [2]

[model]
recipe = "model.py:make"

[data]
kind = "array"
path = "."
"""


@pytest.mark.parametrize(
    ("first", "second", "end"), [("if h.sum() > 0:", "h = -h", BRANCH), ("h = h * random.random() + (", "1)", FROZEN)]
)
def test_plan_says_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str], first: str, second: str, end: str) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(first=first, second=second))
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises((SystemExit, FarflungError)):
        main(["plan", str(tmp_path / "job.toml"), "--topology", "homogeneous-2"])
    said = capfd.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if line.strip()]
    assert len(lines) == 2
    assert lines[0].startswith("capturing ")
    assert lines[1].startswith(f"farflung: model.py:{LINE}: {first} ")
    assert lines[1].endswith(end)


class Checked(nn.Module):
    """A forward that checks its data on the side, as transformers does for images in a text."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all((x > 0).any())
        return self.line(x).mean()


def test_a_check_that_computes_nothing_is_left_out() -> None:
    assert {op.target for op in capture(Checked(), (torch.zeros(2, 4),)).ops if "linear" in op.target or "item" in op.target} == {
        "aten.linear.default"
    }
    with pytest.raises(RuntimeError):
        Checked()(torch.zeros(2, 4))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, mask: Any = None) -> torch.Tensor:
        return self.line(x * mask[:, None]).mean()


def test_any_other_failure_names_its_line() -> None:
    with pytest.raises(
        CaptureError,
        match=r"can't trace the module at test_data_dependence\.py:\d+ \(return self\.line\(x \* mask.*\): TypeError: 'None",
    ):
        capture(Broken(), (torch.zeros(2, 4),))


def test_the_traceback_of_a_refused_forward_has_nothing_of_torch() -> None:
    class Branching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                x = -x
            return super().forward(x).mean()

    with pytest.raises(CaptureError, match="depends on tensor data") as caught:
        train(Branching(2, 1), lambda step, index: (torch.ones(3, 2),), steps=1)
    shown = "".join(traceback.format_exception(caught.value))
    assert str(Path(torch.__file__).parent) not in shown
    assert "direct cause" not in shown
    assert "During handling" not in shown


IDS = torch.ones(2, 8, dtype=torch.int64)
SMALL: dict[str, Any] = {"vocab_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16}


def speech(**changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2}
    settings = SMALL | convolutions | positions | {"intermediate_size": 32, "classifier_proj_size": 8} | changes
    made = transformers.Wav2Vec2ForSequenceClassification(transformers.Wav2Vec2Config(**settings))
    return made, {"input_values": torch.ones(2, 400), "labels": torch.tensor([0, 1])}


def mixture(implementation: str) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    settings = SMALL | {"intermediate_size": 32, "num_key_value_heads": 2, "num_local_experts": 2}
    made = transformers.MixtralForCausalLM(transformers.MixtralConfig(**settings))
    made.set_experts_implementation(implementation)
    return made, {"input_ids": IDS, "labels": IDS}


def switch() -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    layers = {"num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_experts": 2}
    config = transformers.SwitchTransformersConfig(**sizes, **layers, decoder_start_token_id=0)
    return transformers.SwitchTransformersForConditionalGeneration(config), {"input_ids": IDS, "labels": IDS}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: speech(layerdrop=0.1), r"modeling_wav2vec2\.py:\d+.*: if .* depends on tensor data, .*: set layerdrop=0 "),
        (lambda: speech(layerdrop=0.0), r"modeling_wav2vec2\.py:\d+.* draws .*: set mask_time_prob=0 in the configuration$"),
        (
            lambda: mixture("eager"),
            r"modeling_mixtral\.py:\d+.*: call set_experts_implementation\(\"grouped_mm\"\) of the model; ",
        ),
        (
            switch,
            r"can't trace the module at modeling_switch.*; in place of Switch .*, use another .*, such as Mixtral$",
        ),
    ],
    ids=["LayerDrop", "SpecAugment", "a loop over experts", "a router that converts itself"],
)
def test_models_of_transformers_are_refused_with_a_setting_that_helps(make: Any, said: str) -> None:
    pytest.importorskip("transformers")
    made, inputs = make()
    with pytest.raises(CaptureError, match=said):
        capture(made.train(), inputs)


@pytest.mark.parametrize("make", [lambda: speech(layerdrop=0.0, mask_time_prob=0.0), lambda: mixture("grouped_mm")])
def test_the_settings_help(make: Any) -> None:
    pytest.importorskip("transformers")
    made, inputs = make()
    assert capture(made.train(), inputs).ops
