"""``farflung checkpoint``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from farflung.checkpoint import CheckpointStore, Manifest
from farflung.cli.main import main
from farflung.job import JobSpec, to_json

LAYER = "model.base_model.model.h.0"
ADAPTED = {
    f"{LAYER}.base_layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    f"{LAYER}.lora_A.default.weight": np.array([[1.0, 2.0, 3.0]], np.float32),
    f"{LAYER}.lora_B.default.weight": np.array([[1.0], [10.0]], np.float32),
    "model.base_model.model.head.weight": np.ones(3, np.float32),
}
LORA = {
    "transformers": json.dumps({"model_type": "toy", "architectures": ["Toy"]}),
    "prefix": "model.base_model.model.",
    "lora": json.dumps({"r": 1, "lora_alpha": 2, "fan_in_fan_out": False, "peft_type": "LORA"}),
}


def run(arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as over:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(over.value.code or 0), out, err


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broker's folder with the run ``run-1`` and its checkpoints of steps 2 and 4."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    write(tmp_path / "broker/runs/run-1/checkpoints", {"a": np.ones((2, 2), np.float32), "b": np.zeros(3, np.float32)})
    return tmp_path / "broker"


def write(folder: Path, arrays: dict[str, np.ndarray], notes: dict[str, str] | None = None) -> CheckpointStore:
    store = CheckpointStore(folder)
    for step in (2, 4):
        held = {name: value + (step - 4) for name, value in arrays.items()} | {"optimizer/step/a": np.float32(step)[None]}
        names = list(held)
        shards = tuple(store.write_shard(step, f"w{i}", {n: held[n] for n in names[i::2]}) for i in (0, 1))
        ledger = {"steps": step, "samples": 8 * step}
        manifest = Manifest(
            step=step,
            job=to_json(JobSpec()),
            graph_hash="0" * 64,
            shards=shards,
            ledger=ledger,
            notes=notes or {},
            aliases={"a": ("tied",)} if "a" in arrays else {},
        )
        store.write_manifest(manifest)
    return store


def test_list_by_name_and_by_folder(broker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["checkpoint", "list", "run-1"], capsys)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["step", "2"], ["step", "4"]]
    assert "2 states (and 1 further name of tied ones), 1 optimizer tensor, 2 shards" in out
    code, out, _ = run(["checkpoint", "list", broker / "runs/run-1", "--json"], capsys)
    assert [row["ledger"] for row in json.loads(out)] == [{"steps": 2, "samples": 16}, {"steps": 4, "samples": 32}]


def test_push_and_pull(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    url, out = (tmp_path / "bucket").as_uri() + "/run-1", tmp_path / "back"
    code, said, _ = run(["checkpoint", "push", "run-1", url], capsys)
    assert code == 0
    assert re.fullmatch(rf"step 4: copied to {url} \(\d+ B sent\)\n", said), said
    assert run(["checkpoint", "push", "run-1", url], capsys)[1] == f"step 4: copied to {url} (0 B sent)\n"
    assert run(["checkpoint", "push", "run-1", url, "--step", "2"], capsys)[0] == 0
    code, said, _ = run(["checkpoint", "pull", url, out], capsys)
    assert code == 0
    assert re.fullmatch(rf"step 4: complete, \d+ B in {out}\n", said), said
    assert run(["checkpoint", "verify", out], capsys)[1].startswith("step 4: complete")
    assert run(["checkpoint", "pull", url, out, "--step", "2"], capsys)[0] == 0
    listed = json.loads(run(["checkpoint", "list", out, "--json"], capsys)[1])
    assert [row["ledger"]["samples"] for row in listed] == [16, 32]
    code, _, error = run(["checkpoint", "pull", url, out, "--step", "3"], capsys)
    assert code == 11
    assert "has no whole checkpoint of step 3: there are 2, 4" in error
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    code, _, error = run(["checkpoint", "push", tmp_path / "empty", url], capsys)
    assert code == 11
    assert "has no complete checkpoint" in error


def test_list_shows_damage(broker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (broker / "runs/run-1/checkpoints/step-0000000004/manifest.json").write_text("{")
    code, out, _ = run(["checkpoint", "list", "run-1"], capsys)
    assert code == 0
    assert "damaged: " in out.splitlines()[1]


def test_list_of_nothing(broker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (broker / "runs/run-2").mkdir()
    assert run(["checkpoint", "list", "run-2"], capsys)[1].startswith("no checkpoint in ")


def test_unknown_runs_list_the_known(broker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["checkpoint", "list", "run-9"], capsys)
    assert code == 2
    assert "there is no run 'run-9'" in err
    assert "runs there: run-1; of a broker elsewhere: " in err


def test_verify_finds_a_flipped_bit(broker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["checkpoint", "verify", "run-1"], capsys)
    assert code == 0
    assert out.count("complete") == 2
    shard = next((broker / "runs/run-1/checkpoints/step-0000000002").glob("w0-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, out, err = run(["checkpoint", "verify", "run-1"], capsys)
    assert code == 11
    assert "step 2: " in out
    assert "is corrupt" in out
    assert "step 4: complete" in out
    assert err.strip() == "farflung: damaged: 1 checkpoint of 2; use a complete one"
    assert run(["checkpoint", "verify", "run-1", "--step", "4"], capsys)[0] == 0
    assert "has no whole checkpoint of step 3: there are 2, 4" in run(["checkpoint", "verify", "run-1", "--step", "3"], capsys)[2]


def test_export_to_one_file(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["checkpoint", "export", "run-1", tmp_path / "w.safetensors"], capsys)
    assert code == 0
    assert "3 tensors of step 4" in out
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    assert set(found) == {"a", "tied", "b"}
    assert found["a"].tolist() == found["tied"].tolist() == [[1, 1], [1, 1]]
    place = broker / "runs/run-1/checkpoints/step-0000000002"
    assert run(["checkpoint", "export", place, tmp_path / "v.safetensors"], capsys)[0] == 0
    assert safetensors.numpy.load_file(tmp_path / "v.safetensors")["b"].tolist() == [-2, -2, -2]


def test_export_needs_what_it_needs(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["checkpoint", "export", "run-1", tmp_path / "x", "--pretrained"], capsys)
    assert code == 2
    assert "is not one of transformers, timm, diffusers" in err
    code, _, err = run(["checkpoint", "export", "run-1", tmp_path / "x", "--adapters"], capsys)
    assert code == 2
    assert "has no adapters" in err
    code, _, err = run(["checkpoint", "export", "run-1", tmp_path / "x", "--step", "3"], capsys)
    assert code == 11
    assert "no whole checkpoint of step 3: there are 2, 4" in err
    code, _, err = run(["checkpoint", "export", "run-1", tmp_path / "x", "--adapters", "--pretrained"], capsys)
    assert code == 2
    assert "choose one" in err


@pytest.mark.parametrize("more", [(), ("--pretrained",), ("--adapters",)])
def test_an_export_makes_no_folder_above_its_target(
    broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    target = tmp_path / "none" / "x"
    code, _, err = run(["checkpoint", "export", "run-1", target, *more], capsys)
    assert (code, err) == (2, f"farflung: {target} can't be written: No such file or directory; choose another file\n")
    assert not target.parent.exists()


def test_adapters_merged_and_alone(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(broker / "runs/run-2/checkpoints", ADAPTED, LORA)
    assert run(["checkpoint", "export", "run-2", tmp_path / "whole", "--pretrained"], capsys)[0] == 0
    merged = safetensors.numpy.load_file(tmp_path / "whole/model.safetensors")
    assert merged["h.0.weight"].tolist() == [[2.0, 5.0, 8.0], [23.0, 44.0, 65.0]]
    assert set(merged) == {"h.0.weight", "head.weight"}
    assert run(["checkpoint", "export", "run-2", tmp_path / "alone", "--adapters"], capsys)[0] == 0
    alone = safetensors.numpy.load_file(tmp_path / "alone/adapter_model.safetensors")
    assert set(alone) == {"base_model.model.h.0.lora_A.weight", "base_model.model.h.0.lora_B.weight"}
    assert json.loads((tmp_path / "alone/adapter_config.json").read_text())["r"] == 1


def test_adapters_that_can_not_be_merged(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(broker / "runs/run-2/checkpoints", {**ADAPTED, f"{LAYER}.lora_embedding_A": np.ones(2, np.float32)}, LORA)
    code, _, err = run(["checkpoint", "export", "run-2", tmp_path / "whole", "--transformers"], capsys)
    assert code == 11
    assert "lora_embedding_A' can't be merged" in err
    write(broker / "runs/run-3/checkpoints", ADAPTED, {**LORA, "lora": "{}"})
    code, _, err = run(["checkpoint", "export", "run-3", tmp_path / "whole", "--pretrained"], capsys)
    assert code == 11
    assert "note on its adapters is malformed" in err


def test_an_export_does_not_write_over_what_is_there(broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.safetensors"
    out.write_text("mine")
    for place, more in ((out, ()), (broker, ("--pretrained",))):
        code, _, err = run(["checkpoint", "export", "run-1", place, *more], capsys)
        assert code == 2
        assert err == f"farflung: {place} exists already: choose another path, or pass --force to overwrite it\n"
    assert out.read_text() == "mine"
    assert run(["checkpoint", "export", "run-1", out, "--force"], capsys)[0] == 0
    assert sorted(safetensors.numpy.load_file(out)) == ["a", "b", "tied"]
