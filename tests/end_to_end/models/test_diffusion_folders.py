"""The recipe diffusers: a folder of the library in, two workers, a folder out, with the weights of a plain loop."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.frontends.recipes.diffusion_folder import diffusion_model
from farflung.job import JobSpec, make_job
from tests.support.models.vision_libraries import diffusers_library
from tests.support.runs.loopback import same, text_job
from tests.support.runs.model_exports import arrays_of, exported, trained

diffusers = diffusers_library()

_UNET = {"sample_size": 8, "layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}
_SAMPLES = 12
#: Class, configuration, and the shapes of what the data give beside the images.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "unet": (
        "UNet2DModel",
        {**_UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        {},
    ),
    "text": (
        "UNet2DConditionModel",
        {
            **_UNET,
            "in_channels": 3,
            "out_channels": 3,
            "cross_attention_dim": 8,
            "attention_head_dim": 2,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        {"encoder_hidden_states": (5, 8)},
    ),
    "dit": (
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 3,
            "out_channels": 6,
            "num_layers": 2,
            "sample_size": 8,
            "num_embeds_ada_norm": 10,
            "norm_num_groups": 4,
        },
        {"class_labels": ()},
    ),
}


def saved(kind: str, folder: Path) -> Any:
    name, config, _ = MODELS[kind]
    torch.manual_seed(3)
    model = getattr(diffusers, name)(**config)
    model.save_pretrained(folder)
    return model


def save_data(kind: str, folder: Path) -> dict[str, str]:
    folder.mkdir()
    random = np.random.default_rng(2)
    np.save(folder / "images.npy", random.normal(size=(_SAMPLES, 3, 8, 8)).astype(np.float32))
    for name, shape in MODELS[kind][2].items():
        found = random.normal(size=(_SAMPLES, *shape)).astype(np.float32) if shape else random.integers(0, 10, _SAMPLES)
        np.save(folder / f"{name}.npy", found)
    return {name: name for name in ("images", *MODELS[kind][2])}


def diffusion_job(kind: str, home: Path, **changes: Any) -> JobSpec:
    args = {"folder": str(home / "model"), **({"tokens": 5} if kind == "text" else {})}
    data = {"kind": "array", "path": "arrays", "fields": save_data(kind, home / "arrays"), "eval_fraction": 0.2}
    given = {"steps": 2, "model": {"recipe": "diffusers", "args": args}, "data": data, "plan": {"planner": "equal_number"}}
    return text_job(**(given | changes))


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_in_and_a_folder_out(tmp_path: Path, kind: str) -> None:
    before = saved(kind, tmp_path / "model")
    job = diffusion_job(kind, tmp_path, evaluate={"batches": 1})
    finished, module = trained(job, tmp_path, arrays_of(before, "network."))
    assert finished.evaluations[-1].loss > 0
    out = exported(finished, tmp_path / "out")
    after, notes = type(before).from_pretrained(out, output_loading_info=True, low_cpu_mem_usage=False)
    assert (notes["missing_keys"], notes["unexpected_keys"]) == ([], [])
    assert same(arrays_of(module.network), arrays_of(after)) == []
    assert same(arrays_of(before), arrays_of(after)) != []


def test_noise_and_prediction_are_those_of_the_scheduler(tmp_path: Path) -> None:
    saved("unet", tmp_path / "pipeline" / "unet")
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=7, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction")
    scheduler.save_pretrained(tmp_path / "pipeline" / "scheduler")
    made = load_recipe("diffusers", {"folder": str(tmp_path / "pipeline")}).train.factory()
    assert torch.equal(made.kept, scheduler.alphas_cumprod)
    assert made.prediction == "v_prediction"
    images, noise = torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8)
    times = torch.arange(4)
    kept = made.kept[times].view(-1, 1, 1, 1)
    assert torch.allclose(scheduler.add_noise(images, noise, times), kept.sqrt() * images + (1 - kept).sqrt() * noise)
    assert torch.allclose(scheduler.get_velocity(images, noise, times), kept.sqrt() * noise - (1 - kept).sqrt() * images)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            {"colour": 1},
            r"diffusers: unknown argument model\.args\.colour: known are folder, size, tokens, inputs, prediction, and",
        ),
        (
            {"prediction": "magic"},
            r"unknown prediction 'magic' \(model\.args\.prediction\): known are epsilon, v_prediction, sample",
        ),
        ({"inputs": "smell"}, r"unknown input 'smell' in model\.args\.inputs: known are class_labels, encoder_hidden_states"),
        ({"size": -1}, r"model\.args\.size = -1: must be a whole number of pixels"),
        ({"folder": "none"}, r"has no config\.json, nor a folder unet or transformer with one: name the folder of a downloaded"),
        ({"block_out_channels": (7, 7)}, r"diffusers: the model UNet2DModel can't be built: "),
        ({"_class_name": "os"}, r"the library has no model class 'os', which config\.json names"),
    ],
)
def test_errors(tmp_path: Path, args: dict[str, Any], text: str) -> None:
    saved("unet", tmp_path)
    with pytest.raises(InputError, match=text):
        load_recipe("diffusers", {"folder": str(tmp_path), **args})


def test_weights_that_are_not_read_are_refused(tmp_path: Path) -> None:
    saved("unet", tmp_path)
    (tmp_path / "diffusion_pytorch_model.safetensors").rename(tmp_path / "diffusion_pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"are 'diffusion_pytorch_model\.bin', and only diffusion_pytorch_model\.safetensors is read"
    ):
        load_recipe("diffusers", {"folder": str(tmp_path)})


def test_the_page_has_a_job_and_lists_every_argument() -> None:
    """The second block of docs/image-models.md."""
    import tomllib

    page = (Path(__file__).parents[3] / "docs" / "image-models.md").read_text(encoding="utf-8")
    _, block = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    job = make_job(tomllib.loads(block))
    assert job.model is not None
    known = set(inspect.signature(diffusion_model).parameters) - {"more"}
    assert (job.model.recipe, set(job.model.args) <= known) == ("diffusers", True)
    assert known <= set(re.findall(r"\b[a-z_]+\b", page.partition("diffusers")[2]))
