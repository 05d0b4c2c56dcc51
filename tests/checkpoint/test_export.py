"""Export and first weights: the right names, tied parameters, wrapper prefixes, and equal logits in transformers."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from farflung.checkpoint import (
    CheckpointReader,
    CheckpointStore,
    Manifest,
    Weights,
    export_file,
    export_folder,
    match_states,
)
from farflung.checkpoint.export import LIBRARIES
from farflung.errors import CheckpointError
from farflung.graph.ir import State, StateKind, TensorSpec
from farflung.graph.weight_expressions import INITIAL
from farflung.job import JobSpec, to_json

ARRAYS = {"wte.weight": np.arange(6, dtype=np.float32).reshape(3, 2), "ln.bias": np.ones(2, np.float32)}


def reader(tmp_path: Path, arrays: dict[str, np.ndarray], aliases: dict[str, tuple[str, ...]] | None = None) -> CheckpointReader:
    store = CheckpointStore(tmp_path / "run")
    names = list(arrays)
    shards = tuple(store.write_shard(1, f"s{i}", {name: arrays[name] for name in names[i::2]}) for i in (0, 1))
    store.write_manifest(Manifest(step=1, job=to_json(JobSpec()), graph_hash="", shards=shards, aliases=aliases or {}))
    return CheckpointReader.from_folder(store.folder)


def state(
    name: str, shape: tuple[int, ...], *aliases: str, kind: StateKind = StateKind.PARAMETER, persistent: bool = True
) -> State:
    return State(name=name, kind=kind, spec=TensorSpec(dtype="float32", shape=shape), aliases=aliases, persistent=persistent)


def weights(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Weights:
    safetensors.numpy.save_file(arrays, tmp_path / "w.safetensors")
    return Weights.open(tmp_path / "w.safetensors")


def test_one_file_with_all_names(tmp_path: Path) -> None:
    source = reader(tmp_path, ARRAYS, {"wte.weight": ("head.weight",)})
    assert set(export_file(source, tmp_path / "out.safetensors")) == {"wte.weight", "head.weight", "ln.bias"}
    found = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert np.array_equal(found["head.weight"], ARRAYS["wte.weight"])
    assert np.array_equal(found["ln.bias"], ARRAYS["ln.bias"])
    export_file(source, tmp_path / "out.safetensors", aliases=False)
    assert set(safetensors.numpy.load_file(tmp_path / "out.safetensors")) == set(ARRAYS)


def test_an_export_is_read_as_docs_results_md_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    export_file(reader(tmp_path, ARRAYS), tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    assert {name: value.numpy().tolist() for name, value in names["weights"].items()} == {
        n: a.tolist() for n, a in ARRAYS.items()
    }
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(one.startswith("safetensors") for one in project["optional-dependencies"]["torch"])


def test_names_must_be_whole_and_distinct(tmp_path: Path) -> None:
    source = reader(tmp_path, ARRAYS)
    with pytest.raises(CheckpointError, match=r"names lack 'ln.bias': map every state"):
        export_file(source, tmp_path / "a", names={"wte.weight": "a"})
    with pytest.raises(CheckpointError, match=r"map both 'wte.weight' and 'ln.bias' to 'a'"):
        export_file(source, tmp_path / "a", names={"wte.weight": "a", "ln.bias": "a"})
    assert not (tmp_path / "a").exists()


def test_transformers_folder(tmp_path: Path) -> None:
    names = {name: f"transformer.{name}" for name in ARRAYS}
    folder = export_folder(
        reader(tmp_path, ARRAYS, {"wte.weight": ("lm_head.weight",)}),
        tmp_path / "out",
        config='{"model_type": "gpt2"}',
        names=names,
        files={"tokenizer.json": b"{}"},
    )
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "gpt2"}
    assert set(safetensors.numpy.load_file(folder / "model.safetensors")) == set(names.values())
    assert (folder / "tokenizer.json").read_bytes() == b"{}"


@pytest.mark.parametrize(("key", "file"), LIBRARIES.values())
def test_a_folder_has_the_names_of_its_library(tmp_path: Path, key: str, file: str) -> None:
    names = {name: name for name in ARRAYS}
    folder = export_folder(reader(tmp_path, ARRAYS), tmp_path / "out", config={key: "x"}, names=names)
    assert json.loads((folder / "config.json").read_text()) == {key: "x"}
    assert set(safetensors.numpy.load_file(folder / file)) == set(names)


def test_a_model_of_diffusers_with_a_key_of_another_library_has_the_file_of_diffusers(tmp_path: Path) -> None:
    config = {"model_type": "x", "_class_name": "UNet2DModel"}
    folder = export_folder(reader(tmp_path, ARRAYS), tmp_path / "out", config=config)
    assert [path.name for path in folder.glob("*.safetensors")] == ["diffusion_pytorch_model.safetensors"]


@pytest.mark.parametrize("config", ["{", "[]", "{}"])
def test_transformers_needs_a_configuration(tmp_path: Path, config: str) -> None:
    with pytest.raises(CheckpointError, match="must be a JSON object with model_type or architecture or _class_name"):
        export_folder(reader(tmp_path, ARRAYS), tmp_path / "out", config=config)


def test_export_files_stay_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'\.\./a' must be a plain file name"):
        export_folder(reader(tmp_path, ARRAYS), tmp_path / "out", config={"model_type": "x"}, files={"../a": b""})


@pytest.mark.slow
def test_from_pretrained_gives_equal_logits(tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16)).eval()
    parameters = {f"model.{name}": value.detach().numpy() for name, value in model.named_parameters()}
    source = reader(tmp_path, parameters, {"model.transformer.wte.weight": ("model.lm_head.weight",)})
    names = {name: name.removeprefix("model.") for name in parameters}
    folder = export_folder(source, tmp_path / "out", config=model.config.to_json_string(use_diff=False), names=names)
    loaded = GPT2LMHeadModel.from_pretrained(folder).eval()
    tokens = torch.arange(16).reshape(1, 16)
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("transformer.h.{}.weight", "transformer.h.{}.weight"),
        ("transformer.h.{}.weight", "h.{}.weight"),
        ("h.{}.weight", "transformer.h.{}.weight"),
        ("model.transformer.h.{}.weight", "gpt.h.{}.weight"),
        ("base_model.model.h.{}.base_layer.weight", "h.{}.weight"),
        ("model.base_model.model.transformer.h.{}.base_layer.weight", "h.{}.weight"),
    ],
)
def test_states_are_found_under_another_prefix(tmp_path: Path, mine: str, theirs: str) -> None:
    held = weights(tmp_path, {theirs.format(i): np.full((2,), i, np.float32) for i in range(3)})
    match = match_states(held, [state(mine.format(i), (2,)) for i in range(3)])
    assert dict(match.names) == {mine.format(i): theirs.format(i) for i in range(3)}
    assert match.missing == match.unused == ()
    assert held.read(theirs.format(2)).tolist() == [2, 2]


def test_tied_and_unneeded_states(tmp_path: Path) -> None:
    held = weights(tmp_path, {"head.weight": np.ones((3, 2), np.float32), "extra": np.ones(1, np.float32)})
    states = [
        state("wte.weight", (3, 2), "head.weight"),
        state("mask", (9,), kind=StateKind.BUFFER, persistent=False),
        state("one", (1,), kind=StateKind.CONSTANT),
    ]
    match = match_states(held, states)
    assert match.names == {"wte.weight": "head.weight"}
    assert match.unused == ("extra",)


def test_missing_states_and_wrong_shapes(tmp_path: Path) -> None:
    held = weights(tmp_path, {"a": np.ones(2, np.float32)})
    states = [state("a", (2,)), state("lora.a", (2,))]
    with pytest.raises(CheckpointError, match=r"lack 1 of 2 states, e\.g\. 'lora\.a' \(they have e\.g\. 'a'\): .*strict = false"):
        match_states(held, states)
    assert match_states(held, states, strict=False).missing == ("lora.a",)
    with pytest.raises(CheckpointError, match=r"hold 'a' with shape \[2\], the model's 'a' has \[3\]"):
        match_states(held, [state("a", (3,))])


def test_two_states_never_take_one_tensor(tmp_path: Path) -> None:
    held = weights(tmp_path, {"a.weight": np.ones(2, np.float32)})
    states = [state("a.weight", (2,)), state("a.base_layer.weight", (2,))]
    assert match_states(held, states, strict=False).missing == ("a.base_layer.weight",)


def test_adapters_are_no_part_of_the_file(tmp_path: Path) -> None:
    held = weights(tmp_path, {"h.attn.weight": np.ones(2, np.float32), "h.mlp.weight": np.ones(2, np.float32)})
    base = [state("m.h.attn.base_layer.weight", (2,)), state("m.h.mlp.weight", (2,))]
    match = match_states(held, [*base, state("m.h.attn.lora_A.default.weight", (1,))])
    assert match.missing == ("m.h.attn.lora_A.default.weight",)
    assert match.names["m.h.attn.base_layer.weight"] == "h.attn.weight"
    with pytest.raises(CheckpointError, match=r"lack 1 of 3 states, e\.g\. 'm\.h\.mlp\.bias'"):
        match_states(held, [*base, state("m.h.mlp.bias", (1,))])


def test_a_state_may_begin_with_initial_values(tmp_path: Path) -> None:
    held = weights(tmp_path, {"body": np.ones(2, np.float32), "head": np.ones(5, np.float32)})
    states = [state("body", (2,)), state("head", (3,))]
    match = match_states(held, states, sources={"head": INITIAL})
    assert (dict(match.names), match.missing, match.unused) == ({"body": "body"}, ("head",), ("head",))
    with pytest.raises(CheckpointError, match=r"hold 'head' with shape \[5\], the model's 'head' has \[3\]"):
        match_states(held, states)


def test_conversion_of_element_types(tmp_path: Path) -> None:
    held = weights(tmp_path, {"a": np.array([1.5, 2.5], np.float16)})
    assert held.read("a", "float32").dtype == np.float32
    assert held.read("a", "bfloat16").dtype.name == "bfloat16"
    with pytest.raises(CheckpointError, match="have no tensor 'b'"):
        held.read("b")


def test_folders_with_parts(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(1)}, tmp_path / "m-1.safetensors")
    safetensors.numpy.save_file({"b": np.zeros(1)}, tmp_path / "m-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors \(or its index\)"):
        Weights.open(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    assert set(Weights.open(tmp_path).names) == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {"a": "../m-1.safetensors"}}))
    with pytest.raises(CheckpointError, match="names files outside its folder"):
        Weights.open(tmp_path)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="is no index of safetensors files"):
        Weights.open(tmp_path)
    safetensors.numpy.save_file({"c": np.zeros(1)}, tmp_path / "model.safetensors")
    assert set(Weights.open(tmp_path).names) == {"c"}


def test_one_name_in_two_files(tmp_path: Path) -> None:
    from farflung.checkpoint import FileBlob

    for name in ("x", "y"):
        safetensors.numpy.save_file({"a": np.ones(1)}, tmp_path / name)
    with pytest.raises(CheckpointError, match="tensor 'a' is in two of the weight files"):
        Weights.of(FileBlob(tmp_path / name) for name in ("x", "y"))
