"""``Trainer`` of the library ``transformers``, which trains on the workers of farflung.

The class is the original with another ``train``. Dataset, collation, sampler, optimizer and scheduler are those that the original
makes, so scripts keep their arguments. Arguments that would have no effect are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import transformers
from transformers.trainer_utils import TrainOutput

from farflung.api import Evaluation, StopTraining, train
from farflung.errors import InputError
from farflung.job.spec import CheckpointSpec
from farflung.telemetry.records import EvaluationRecord, StepRecord

__all__ = ["Trainer"]

#: Arguments that have an effect, or that concern what happens outside of ``train``. All others must have their defaults.
_SUPPORTED = frozenset(
    (
        *("output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type"),
        *(
            "lr_scheduler_kwargs",
            "warmup_steps",
            "optim",
            "optim_args",
            "weight_decay",
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
        ),
        *("gradient_accumulation_steps", "average_tokens_across_devices", "max_grad_norm", "bf16", "use_cache"),
        *("logging_strategy", "logging_steps", "logging_first_step", "log_level", "disable_tqdm", "report_to", "run_name"),
        *("eval_strategy", "eval_steps", "per_device_eval_batch_size", "prediction_loss_only", "eval_do_concat_batches"),
        *("save_strategy", "save_steps", "save_total_limit", "seed", "data_seed", "use_cpu", "do_train", "do_eval", "do_predict"),
        *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
        *("remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name", "resume_from_checkpoint"),
        *("skip_memory_metrics", "hub_token", "push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_revision"),
        *("local_rank", "batch_eval_metrics", "include_for_metrics", "project", "logging_nan_inf_filter"),
    )
)


class Trainer(transformers.Trainer):
    """``transformers.Trainer`` whose ``train`` runs on farflung.

    ``ticket``: a broker's submit ticket. ``workers``: without a ticket, threads of this process; with a ticket, machines.
    ``options``: further arguments of ``farflung.train``, such as ``planner`` or ``codec``. All other arguments are those of the
    original. The loss of a micro-batch is the model's own mean, and micro-batches of a step count equally. (The original divides
    by the number of labels of a step, in which it counts labels that no token predicts.)

    Raises:
        InputError: an argument of the original is not supported; the text names it.
    """

    def __init__(
        self,
        *args: Any,
        ticket: str | None = None,
        workers: int | None = None,
        options: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        given = named.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            _check_arguments(given)  # before the original sets up its devices, which other arguments would reset
        super().__init__(*args, **named)
        if self.compute_metrics is not None and self.args.eval_strategy != "no":
            raise InputError(
                "compute_metrics with eval_strategy: an evaluation during training reports the loss only; call evaluate() after "
                "train(), or remove one of them"
            )
        if isinstance(self.eval_dataset, dict) and self.args.eval_strategy != "no":
            raise InputError("eval_dataset is a dict: pass one dataset, or set eval_strategy='no'")
        self._places = {"ticket": ticket, "workers": workers, **(options or {})}

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train the model in place.

        ``resume_from_checkpoint``: a run of farflung: a folder, with a ticket a run's name, or True for ``output_dir``.

        Raises:
            InputError: an argument is not supported.
            FarflungError: the training failed.
        """
        for name, value in (("trial", trial), ("ignore_keys_for_eval", ignore_keys_for_eval)):
            if value is not None:
                raise InputError(f"train({name}=...) is not supported by farflung: remove it")
        args, accumulate = self.args, self.args.gradient_accumulation_steps
        loader = _plain(self.get_train_dataloader())
        steps = args.max_steps if args.max_steps > 0 else max(1, int(len(loader) * args.num_train_epochs) // accumulate)
        model = cast("Any", self.model)
        model.train()
        self.optimizer = self.lr_scheduler = None
        optimizer = self.create_optimizer()
        watch = _Watch(self, steps, accumulate * args.train_batch_size)
        result = train(
            model,
            loader,
            steps=steps,
            accumulate=accumulate,
            optimizer=optimizer,
            schedule=lambda made: self.create_scheduler(steps, made),
            clip_norm=args.max_grad_norm or None,
            precision="bf16" if args.bf16 else "float32",
            evaluate=self._evaluation(steps),
            callbacks=[watch],
            seed=args.seed,
            **self._folders(resume_from_checkpoint or args.resume_from_checkpoint),
            **self._places,
        )
        result.load_into(model)
        mean = sum(result.losses) / max(len(result.losses), 1)
        metrics = {"train_loss": mean}
        watch.end()
        return TrainOutput(result.steps, mean, metrics)

    def _evaluation(self, steps: int) -> Evaluation | None:
        args = self.args
        if args.eval_strategy == "no":
            return None
        of_epoch = max(1, int(steps / max(args.num_train_epochs, 1)))
        every = of_epoch if args.eval_strategy == "epoch" else int(args.eval_steps or args.logging_steps)
        return Evaluation(batch_fn=_plain(self.get_eval_dataloader()), every=every)

    def _folders(self, resume: str | bool | None) -> dict[str, Any]:
        """Where checkpoints go; with a ticket, the broker stores them."""
        args = self.args
        every = int(args.save_steps) if args.save_strategy == "steps" else 0
        spec = CheckpointSpec(every=every, keep=args.save_total_limit or 2)
        folder = None if self._places["ticket"] is not None else Path(str(args.output_dir)) / "farflung"
        found: dict[str, Any] = {"checkpoint": spec, "folder": folder}
        return found | ({} if not resume else {"resume": folder if resume is True else resume})


class _Watch:
    """Passes steps and evaluations on to the callbacks of the original."""

    def __init__(self, trainer: Trainer, steps: int, samples: int) -> None:
        self._trainer, self._samples = trainer, samples
        trainer.state = transformers.TrainerState(max_steps=steps, logging_steps=int(trainer.args.logging_steps))
        trainer.state.num_train_epochs = max(1, int(trainer.args.num_train_epochs))
        self._call("on_train_begin")

    def on_step(self, record: StepRecord) -> None:
        """One step."""
        state, control = self._trainer.state, self._trainer.control
        state.global_step = record.step + 1
        state.epoch = (record.step + 1) * self._samples / max(len(cast("Any", self._trainer.train_dataset)), 1)
        self._call("on_step_begin")
        self._call("on_step_end")
        if control.should_log:
            self._log({"loss": record.loss, "learning_rate": record.learning_rate})
        if control.should_training_stop and state.global_step < state.max_steps:
            raise StopTraining

    def on_evaluation(self, record: EvaluationRecord) -> None:
        """One evaluation."""
        metrics = {"eval_loss": record.loss}
        self._log(metrics)
        self._call("on_evaluate", metrics)
        if self._trainer.control.should_training_stop and record.step < self._trainer.state.max_steps:
            raise StopTraining

    def end(self) -> None:
        """The training is over."""
        self._call("on_train_end")

    def _log(self, values: dict[str, float]) -> None:
        state = self._trainer.state
        state.log_history.append({**values, "step": state.global_step, "epoch": state.epoch or 0.0})
        self._call("on_log", values)

    def _call(self, event: str, *values: Any) -> None:
        trainer = self._trainer
        found = getattr(trainer.callback_handler, event)(trainer.args, trainer.state, trainer.control, *values)
        trainer.control = found or trainer.control


def _plain(loader: Any) -> Any:
    """The ``DataLoader`` behind one of ``accelerate``, which would move batches to a device."""
    return getattr(loader, "base_dataloader", loader)


def _check_arguments(given: transformers.TrainingArguments) -> None:
    """See that no argument has a value that would be ignored.

    Raises:
        InputError: one has.
    """
    plain = type(given)(output_dir=given.output_dir)
    for one in fields(given):
        value = getattr(given, one.name)
        if one.name not in _SUPPORTED and value != getattr(plain, one.name):
            raise InputError(f"TrainingArguments({one.name}={value!r:.80}) is not supported by farflung: remove {one.name}")
