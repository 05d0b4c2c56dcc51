"""The ``Trainer`` of transformers on farflung: the same arguments, the same weights up to rounding, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import Dataset

from farflung.errors import InputError
from farflung.integrations.transformers import Trainer


class Rows(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[0] = -100  # no token predicts it; the original would count it in its mean
        return {"input_ids": self.tokens[index], "labels": labels}


def model() -> Any:
    torch.manual_seed(1)
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, **drops)
    return transformers.GPT2LMHeadModel(config)


def arguments(folder: Path, **changed: Any) -> transformers.TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "optim": "adamw_torch",
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "data_seed": 5,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **(settings | changed))


@pytest.mark.filterwarnings("ignore")
def test_the_weights_are_those_of_the_original_up_to_rounding(tmp_path: Path) -> None:
    theirs = transformers.Trainer(model(), arguments(tmp_path / "theirs"), train_dataset=Rows(24))
    expected = theirs.train()
    ours = Trainer(model(), arguments(tmp_path / "ours"), train_dataset=Rows(24), workers=2)
    found = ours.train()
    assert found.global_step == expected.global_step == 12
    assert found.training_loss == pytest.approx(expected.training_loss, rel=1e-5)
    states = theirs.model.state_dict()
    assert all(torch.allclose(value, states[name], atol=1e-5) for name, value in ours.model.state_dict().items())
    history = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    assert len([row for row in ours.state.log_history if "loss" in row]) == len(history) == 6
    ours.save_model(str(tmp_path / "saved"))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in ours.model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_evaluations_callbacks_and_resuming(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 5

    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    whole = Trainer(model(), arguments(tmp_path / "whole", **settings), train_dataset=Rows(24), eval_dataset=Rows(8))
    whole.train()
    assert [row["step"] for row in whole.state.log_history if "eval_loss" in row] == [2, 4, 6, 8, 10, 12]
    assert whole.evaluate()["eval_loss"] == pytest.approx(whole.state.log_history[-1]["eval_loss"], rel=1e-5)
    first = Trainer(
        model(), arguments(tmp_path / "run", **settings), train_dataset=Rows(24), eval_dataset=Rows(8), callbacks=[Stop()]
    )
    assert first.train().global_step == 5
    second = Trainer(model(), arguments(tmp_path / "run", **settings), train_dataset=Rows(24), eval_dataset=Rows(8))
    assert second.train(resume_from_checkpoint=True).global_step == 12
    states = whole.model.state_dict()
    assert all(torch.equal(value, states[name]) for name, value in second.model.state_dict().items())


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"neftune_noise_alpha": 5.0},
            r"^TrainingArguments\(neftune_noise_alpha=5\.0\) is not supported by farflung: remove neft",
        ),
        (
            {"label_smoothing_factor": 0.1},
            r"^TrainingArguments\(label_smoothing_factor=0\.1\) is not supported by farflung: remove",
        ),
        (
            {"torch_compile": True},
            r"^TrainingArguments\(torch_compile=True\) is not supported by farflung: remove torch_compile$",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_arguments_that_would_be_ignored_are_refused(changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=text):
        Trainer(model(), arguments(tmp_path, **changed), train_dataset=Rows(8))


@pytest.mark.filterwarnings("ignore")
def test_metrics_and_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^compute_metrics with eval_strategy: an evaluation during training reports the loss only"
    ):
        Trainer(
            model(),
            arguments(tmp_path, eval_strategy="epoch"),
            train_dataset=Rows(8),
            eval_dataset=Rows(8),
            compute_metrics=lambda prediction: {},
        )
    with pytest.raises(InputError, match=r"^eval_dataset is a dict: pass one dataset, or set eval_strategy='no'$"):
        Trainer(model(), arguments(tmp_path, eval_strategy="epoch"), train_dataset=Rows(8), eval_dataset={"a": Rows(8)})
    with pytest.raises(InputError, match=r"^train\(trial=\.\.\.\) is not supported by farflung: remove it$"):
        Trainer(model(), arguments(tmp_path), train_dataset=Rows(8)).train(trial=1)
