"""Settings in messages are spelled for who reads them."""

from __future__ import annotations

import pytest

from farflung import train
from farflung.api.argument_names import in_arguments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('set plan.recompute = "auto"', 'set planner=PlanSpec(recompute="auto")'),
        ("clip gradients (optimizer.clip_norm)", "clip gradients (clip_norm)"),
        ('set on_nan = "skip"', 'set job=JobSpec(on_nan="skip")'),
        ("set plan.helpers = false.", "set planner=PlanSpec(helpers=False)."),
        ("sync.settings.codec = 'zip': unknown", "sync=SyncSpec(settings={'codec': 'zip'}): unknown"),
        ("optimizer.groups[0].match = '(' is wrong", "optimizer=OptimizerSpec(groups=...)[0].match = '(' is wrong"),
        ("codec.ratio = 0.5: must be", "codec=CodecSpec(ratio=0.5): must be"),
        ("steps = 4: shorten it", "steps=4: shorten it"),
        ("remove [sync], or micro_batch_sizes = [4, 4]", "remove sync, or micro_batches=[4, 4]"),
        ("limits.stages = 2 allows", "job=JobSpec(limits=LimitSpec(stages=2)) allows"),
        (
            "or load its exported weights with weights.source = 'file' to begin",
            "or load its exported weights into the module to begin",
        ),
        ("checkpoint.keep", "checkpoint=CheckpointSpec(keep=...)"),
    ],
)
def test_keys_of_a_job_file_become_arguments(text: str, said: str) -> None:
    assert in_arguments(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "see plan.json and codec.py in 3 steps with seed and copies",
        "job=JobSpec(on_nan='skip') and PlanSpec(recompute='auto')",
        "'plan.recompute' stays as a quotation",
        "the weights of model.safetensors, batch_fn(0, 0)",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert in_arguments(text) == text


def test_a_misspelled_argument_is_an_error_that_names_the_close_one() -> None:
    with pytest.raises(TypeError, match=r"^train\(\) has no argument 'learning_rate': did you mean 'lr'\?$"):
        train(learning_rate=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^train\(\) has no argument 'callback': did you mean 'callbacks'\?$"):
        train(callback=print)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^train\(\) has no argument 'x': see help\(farflung\.train\)$"):
        train(x=1)  # type: ignore[call-arg]
