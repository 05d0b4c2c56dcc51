"""Norms and finiteness of gradients: who contributes which norm, what clips, and what is judged how."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from farflung.errors import FarflungError, Stopped, TrainingError
from farflung.messages.data import Norms, Verdict
from farflung.step.context import StepContext
from farflung.step.gradient_check import GradientCheck
from farflung.step.inbox import Inbox
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.loss_scale import LossScale
from farflung.step.transfer.spoilt_values import SpoiltValues
from tests.support.steps.small_runs import small_setup

CLIPPED = {"name": "sgd", "lr": 0.1, "clip_norm": 2.0}
FINE = Verdict(run="run-small", step=4, finite=True, bad=(), losses=(), stop=False, save=False, copy_states=False)
BAD = Verdict(run="run-small", step=4, finite=False, bad=(1, 3), losses=(), stop=False, save=False, copy_states=False)


class Scene:
    """Worker ``a`` of two; ``posted``: what it sends. Its one stage has ``norms`` and gradients that are ``spoilt``."""

    def __init__(
        self, *, norms: Mapping[str, float] | None = None, spoilt: tuple[str, ...] = (), hearsay: float = 0.0, **job: Any
    ) -> None:
        self.setup, self.inbox, self.posted = small_setup("a", **job), Inbox(), list[tuple[str, Norms]]()
        self.spoilt = SpoiltValues()
        transfer = SimpleNamespace(post=lambda peer, message: self.posted.append((peer, message)), spoilt=self.spoilt)
        engine = SimpleNamespace(clip_scale=lambda ordered, limit: np.float32(limit / sum(ordered)))
        context = SimpleNamespace(setup=self.setup, inbox=self.inbox, transfer=transfer, engine=engine)
        runner = SimpleNamespace(gradient_norms=lambda: dict(norms or {}), spoilt_gradients=lambda: list(spoilt))
        stages = SimpleNamespace(
            bases={0: runner}, owns=lambda name, index: name != "first.bias", loss_scale=LossScale(self.setup)
        )
        self.check = GradientCheck(cast(StepContext, context), cast(LocalStages, stages), hearsay=hearsay)


def test_norms_are_needed_for_clipping_and_where_a_bad_step_is_left_out() -> None:
    assert not Scene().check.needs_norm
    assert Scene(optimizer=CLIPPED).check.needs_norm
    assert Scene(on_nan="skip").check.needs_norm


def test_a_state_is_counted_by_its_owner_only() -> None:
    assert Scene(norms={"first.weight": 3.0, "first.bias": 4.0}).check.local_norms() == {"first.weight": 3.0}


def test_norms_of_all_workers_are_joined_in_the_order_of_the_parameters() -> None:
    scene = Scene(optimizer=CLIPPED)
    scene.check.receive("b", Norms(run="run-small", step=4, norms={"third.weight": 4.0}))
    norm, scale = scene.check.exchange(4, {"first.weight": 3.0})
    assert (norm, float(scale if scale is not None else np.nan)) == (5.0, pytest.approx(2.0 / 7.0))
    assert [(peer, message.norms) for peer, message in scene.posted] == [("b", {"first.weight": 3.0})]


def test_without_a_limit_nothing_is_clipped() -> None:
    scene = Scene(on_nan="skip")
    scene.check.receive("b", Norms(run="run-small", step=4, norms={}))
    assert scene.check.exchange(4, {"first.weight": 3.0}) == (3.0, None)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_step_that_is_not_finite_is_left_to_the_policy(policy: str) -> None:
    check = Scene(on_nan=policy, checkpoint={"every": 1}).check
    assert check.judge(4, FINE, 1.0) is None
    assert check.judge(4, BAD, 1.0) == check.judge(4, FINE, float("inf")) == policy


def test_a_job_that_stops_names_the_rule_and_the_remedy() -> None:
    remedy = r"is not a finite number; lower the learning rate, clip gradients .* or set on_nan = \"skip\" or \"rollback\"$"
    check = Scene(optimizer=CLIPPED).check
    with pytest.raises(TrainingError, match=r"^step 4: the loss of micro-batches \[1, 3\] " + remedy):
        check.judge(4, BAD, None)
    with pytest.raises(TrainingError, match=r"^step 4: the norm of the gradients " + remedy):
        check.judge(4, FINE, float("nan"))


@pytest.mark.parametrize(
    ("spoilt", "text"),
    [
        (("first.weight",), "the gradient of 'first.weight' is not"),
        (("first.weight", "x", "y"), r"the gradient of 'first.weight' \(and of 2 more parameters of stage 0\) is not"),
    ],
)
def test_a_bad_gradient_is_named(spoilt: tuple[str, ...], text: str) -> None:
    with pytest.raises(TrainingError, match=f"^step 4: {text}"):
        Scene(spoilt=spoilt).check.check_local(4)


def test_good_gradients_pass() -> None:
    Scene().check.check_local(4)


def blamed(scene: Scene, verdict: Verdict = FINE, norm: float = np.inf) -> str:
    with pytest.raises(TrainingError) as caught:
        scene.check.judge(4, verdict, norm)
    return caught.value.blames


def test_whose_norm_is_not_finite_is_to_blame() -> None:
    scene = Scene(optimizer=CLIPPED)
    scene.check.receive("b", Norms(run="run-small", step=4, norms={"third.weight": np.inf}))
    scene.check.exchange(4, {"first.weight": 3.0})
    assert blamed(scene) == "b"


def test_whoever_sent_infinite_gradients_is_to_blame_and_not_the_worker_that_got_them() -> None:
    scene = Scene(optimizer=CLIPPED)
    scene.check.receive("b", Norms(run="run-small", step=4, norms={"third.weight": 1.0}))
    scene.check.exchange(4, {"first.weight": np.inf})
    assert blamed(scene) == "", "this worker's own"
    scene.spoilt.check(4, "b", np.array([1.0, np.inf], np.float32))
    assert blamed(scene) == "b"


def ended(scene: Scene, verdict: Verdict = FINE) -> str:
    """What a worker with a verdict that is not finite raises if the attempt ends meanwhile."""
    scene.inbox.abort(Stopped("the broker ended the attempt"))
    with pytest.raises(FarflungError) as caught:
        scene.check.judge(4, verdict, np.inf)
    return type(caught.value).__name__


def test_hearsay_leaves_the_report_to_those_who_know_better() -> None:
    """The norm of b is not finite, and b alone knows from whom its numbers came."""
    scene = Scene(optimizer=CLIPPED, hearsay=600.0)
    scene.check.receive("b", Norms(run="run-small", step=4, norms={"third.weight": np.inf}))
    scene.check.exchange(4, {"first.weight": 3.0})
    assert ended(scene) == "Stopped"
    assert ended(Scene(hearsay=600.0), BAD) == "Stopped", "b computed the loss"


def test_a_total_is_hearsay_and_a_part_is_not() -> None:
    scene = Scene(optimizer=CLIPPED, hearsay=600.0)
    scene.check.receive("b", Norms(run="run-small", step=4, norms={"third.weight": 1.0}))
    scene.check.exchange(4, {"first.weight": np.inf})
    scene.spoilt.check(4, "b", np.array([np.nan], np.float32), passed_on=True)
    assert ended(scene) == "Stopped"
    scene.spoilt.check(4, "c", np.array([np.nan], np.float32))
    assert ended(scene) == "TrainingError"
    assert blamed(scene) == "c", "not b, which added what c gave"


def test_a_local_gradient_that_is_not_finite_blames_who_sent_the_numbers() -> None:
    scene = Scene(spoilt=("first.weight",))
    scene.spoilt.check(4, "b", np.array([np.nan], np.float32))
    with pytest.raises(TrainingError) as caught:
        scene.check.check_local(4)
    assert caught.value.blames == "b"


def test_the_last_stage_computed_a_loss_that_is_not_finite() -> None:
    scene = Scene()
    assert blamed(scene, BAD) == scene.setup.places[scene.setup.loss_stage][1] == "b"
