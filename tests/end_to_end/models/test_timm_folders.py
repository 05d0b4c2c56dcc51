"""The recipe timm: a folder of the library or a name in, two workers, a folder out, with the weights of a plain loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung.job import JobSpec, load_job
from tests.support.models.vision_libraries import save_images, save_timm, timm_library
from tests.support.runs.loopback import Finished, Loopback, same, text_job
from tests.support.runs.model_exports import arrays_of, exported, trained

timm = timm_library()
pytest.importorskip("PIL")


def image_job(args: dict[str, Any], **changes: Any) -> JobSpec:
    data = {"kind": "images", "path": "images", "size": 32, "eval_fraction": 0.1}
    given = {"steps": 2, "model": {"recipe": "timm", "args": args}, "data": data, "plan": {"planner": "equal_number"}}
    return text_job(**(given | changes))


def loaded(finished: Finished, out: Path) -> Any:
    """The model that timm loads from an export."""
    exported(finished, out)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    return timm.create_model(f"local-dir:{out}", pretrained=True)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_folder_in_and_a_folder_out(tmp_path: Path, name: str) -> None:
    args = {"num_classes": 3, **({"img_size": 32} if name == "test_vit" else {})}
    before = save_timm(name, tmp_path / "model", **args)
    save_images(tmp_path / "images", 32)
    job = image_job({"folder": str(tmp_path / "model"), "size": 32}, evaluate={"batches": 1})
    finished, module = trained(job, tmp_path, arrays_of(before, "network."))
    assert finished.evaluations[-1].loss > 0
    after = loaded(finished, tmp_path / "out")
    assert same(arrays_of(module.network), arrays_of(after)) == []
    assert same(arrays_of(before), arrays_of(after)) != []
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(module.network.eval()(pixels), after.eval()(pixels))


def test_a_new_classifier_on_trained_weights(tmp_path: Path) -> None:
    before = save_timm("test_resnet", tmp_path / "model", num_classes=5)
    save_images(tmp_path / "images", 32)
    job = image_job({"folder": str(tmp_path / "model"), "size": 32, "num_classes": 3})
    kept = {name: value for name, value in arrays_of(before, "network.").items() if not name.startswith("network.fc.")}
    finished, _ = trained(job, tmp_path, kept)
    assert loaded(finished, tmp_path / "out").fc.weight.shape[0] == 3


def test_a_name_begins_with_random_weights(tmp_path: Path) -> None:
    save_images(tmp_path / "images", 32)
    job = image_job({"name": "test_efficientnet", "size": 32, "num_classes": 3, "drop_path_rate": 0.3})
    finished, _ = trained(job, tmp_path)
    loaded(finished, tmp_path / "out")


def test_the_page_has_a_whole_job(tmp_path: Path) -> None:
    """The block of docs/image-models.md: it trains, on the folders that it names."""
    page = (Path(__file__).parents[3] / "docs" / "image-models.md").read_text(encoding="utf-8")
    block, _ = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    save_timm("test_resnet", tmp_path / "model", num_classes=5)
    save_images(tmp_path / "photos", 32, classes=10)
    for old, new in (("steps = 100", "steps = 1"), ("[16, 16]", "[2, 2]"), ("224", "32")):
        block = block.replace(old, new)
    (tmp_path / "job.toml").write_text(block)
    with Loopback(tmp_path, 1) as cluster:
        finished = cluster.run(load_job(tmp_path / "job.toml"))
    assert finished.result.status == "finished", finished.result.cause
