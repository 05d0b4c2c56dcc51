"""Ranks compute the bits of one process, and the death of one is an error of the call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer

import numpy as np
import psutil
import pytest
import torch

from farflung.codecs import get_codec, keyed
from farflung.engines import ComputeDevice, EngineSettings, MicroBatch
from farflung.engines.encoded_value import Coding, EncodedValue, array_of
from farflung.engines.isolated import PROTECTIONS, Zygote
from farflung.engines.isolated.control import Fold
from farflung.engines.isolated.process import Deadlines
from farflung.engines.site import SiteAttempt, SiteEngine, SiteRunner
from farflung.engines.site.rank import Pending, wait_for_all
from farflung.engines.state_file import StateFile
from farflung.engines.torch.ranks.group import RankGroup
from farflung.errors import EngineCrashed, FarflungError, GraphError, InputError
from farflung.graph.cut import cut
from farflung.job.spec import OptimizerSpec
from farflung.messages.arrays import encode_array, packed_payload
from tests.support.engines.engine_drive import assert_equal, captured, equal_cuts, make, module_states, plain, run

SETTINGS = EngineSettings(optimizer=OptimizerSpec(lr=0.05, momentum=0.9))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def site(zygote: Zygote) -> SiteAttempt:
    attempt = SiteEngine(zygote, [ComputeDevice(name="cpu")] * 2).attempt("cpu", 2 << 30)
    attempt.set_threads(torch.get_num_threads())
    return attempt


def opened(site: SiteAttempt, settings: EngineSettings = SETTINGS) -> SiteRunner:
    graph = captured("gpt2")
    runner = site.open(cut(graph, [(0, len(graph.ops))])[0], settings)
    runner.load(module_states(make("gpt2")[0]))
    return runner


def data_of(runner: SiteRunner, index: int) -> dict[str, np.ndarray]:
    names = dict(runner.subgraph.graph.meta)["inputs"].split(",")
    return {name: tensor.numpy() for name, tensor in zip(names, make("gpt2")[1](0, index), strict=True)}


@pytest.mark.parametrize("name", ["gpt2", "resnet18", "moe"])
def test_the_bits_are_those_of_a_plain_loop(name: str, site: SiteAttempt) -> None:
    for settings in (SETTINGS, replace(SETTINGS, split_backward=True)):
        assert_equal(run(name, equal_cuts(captured(name), 3), 2, settings, site), plain(name, 2, SETTINGS.optimizer))


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet18", "moe"])
def test_the_bits_with_sharded_parameters(name: str, site: SiteAttempt) -> None:
    truth = plain(name, 2, SETTINGS.optimizer)
    for settings in (SETTINGS, replace(SETTINGS, split_backward=True), replace(SETTINGS, recompute=True)):
        sharded = replace(settings, sharded=True)
        assert_equal(run(name, equal_cuts(captured(name), 2), 2, sharded, site), truth)


@pytest.mark.parametrize("divided", ["", "sharded", "tensor"])
def test_ranks_encode_what_leaves_the_site(divided: str, site: SiteAttempt) -> None:
    graph = captured("gpt2")
    piece, _ = cut(graph, equal_cuts(graph, 2))
    value = piece.gives[0].value
    coding = Coding(value=value, gradient=False, name="int8", params=(("rounding", "stochastic"),), micro_batches=(1,))
    codec, given = get_codec("int8", rounding="stochastic"), []
    for codings in ((), (coding,)):
        runner = site.open(piece, replace(SETTINGS, sharded=divided == "sharded", tensor=divided == "tensor", codings=codings))
        runner.load({name: state for name, state in module_states(make("gpt2")[0]).items() if name in piece.states})
        found = [runner.forward(MicroBatch(0, index), {}, data_of(runner, index)).values[value] for index in range(2)]
        given.append(found)
    (_, alone), (first, second) = given
    assert isinstance(first, np.ndarray)
    assert isinstance(second, EncodedValue)
    wanted = encode_array(array_of(alone), keyed(codec, SETTINGS.seed, 0, 1, str(value), 0))
    assert packed_payload(second.meta, second.payload)[:2] == wanted[:2]
    assert [bytes(part) for part in second.payload.sections] == [bytes(part) for part in wanted.sections]


def test_clipping_and_reduced_precision(site: SiteAttempt) -> None:
    optimizer = OptimizerSpec(name="adamw", clip_norm=0.3)
    settings = replace(SETTINGS, optimizer=optimizer, precision="bf16")
    found = run("gpt2", equal_cuts(captured("gpt2"), 2), 2, settings, site)
    assert_equal(found, plain("gpt2", 2, optimizer, "bf16"))


@pytest.mark.parametrize("any_order", [False, True])
def test_micro_batches_that_compute_together_and_parts_of_the_sum(site: SiteAttempt, any_order: bool) -> None:
    """Three micro-batches on two ranks: the last group is not full. The part ends after the second one."""

    def summed(runner: SiteRunner, *, together: bool) -> dict[str, np.ndarray]:
        keys = [MicroBatch(0, index) for index in range(3)]
        for group in (keys[:2], keys[2:]):
            if together:
                runner.begin_forwards([(key, {}, data_of(runner, key.index)) for key in group])
            for key in group:
                runner.forward(key, {}, data_of(runner, key.index))
            if together:
                runner.begin_backwards([(key, {}, 1.0) for key in group])
            for key in group:
                runner.backward(key, {}, 1.0)
                if key.index > 0:
                    runner.close_part(last=key.index == 2)
        runner.finish_gradients({})
        return {name: np.array(value) for name, value in runner.gradients().items()}

    truth = summed(opened(site), together=False)
    found = summed(opened(site, replace(SETTINGS, any_order=any_order)), together=True)
    assert found.keys() == truth.keys()
    for name, gradient in truth.items():
        assert np.allclose(found[name], gradient, rtol=1e-5, atol=1e-6) if any_order else np.array_equal(found[name], gradient)


def test_optimizer_states_are_divided_and_come_back(site: SiteAttempt) -> None:
    runner = opened(site, replace(SETTINGS, optimizer=OptimizerSpec(name="adamw")))
    runner.forward(MicroBatch(0, 0), {}, data_of(runner, 0))
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    runner.close_part(last=True)
    runner.finish_gradients({})
    runner.update([1e-3], None)
    sizes = [len(stage.runner.optimizer_states()) for stage in runner.stages]
    states = runner.optimizer_states()
    assert all(sizes)
    assert sum(sizes) == len(states)
    again = opened(site, replace(SETTINGS, optimizer=OptimizerSpec(name="adamw")))
    again.load_optimizer(states)
    found = again.optimizer_states()
    assert found.keys() == states.keys()
    assert all(np.array_equal(found[key], value) for key, value in states.items())


@pytest.mark.parametrize("any_order", [False, True])
def test_sharded_ranks_compute_together_and_lend_each_other_parameters(site: SiteAttempt, any_order: bool) -> None:
    """Three micro-batches on two ranks: in the second group one rank has none. Evaluation computes on the first rank.

    The owners add in the job's order also where the job allows any.
    """
    outcomes = []
    for sharded in (False, True):
        runner = opened(site, replace(SETTINGS, sharded=sharded, any_order=sharded and any_order))
        shared = site.open(runner.subgraph, replace(SETTINGS, training=False), runner)
        for group in ([0, 1], [2]):
            runner.begin_forwards([(MicroBatch(0, index), {}, data_of(runner, index)) for index in group])
            losses = [runner.forward(MicroBatch(0, index), {}, data_of(runner, index)).outputs for index in group]
            runner.begin_backwards([(MicroBatch(0, index), {}, 1.0) for index in group])
            for index in group:
                runner.backward(MicroBatch(0, index), {}, 1.0)
        runner.close_part(last=True)
        runner.finish_gradients({})
        runner.update([0.05], None)
        evaluated = shared.forward(MicroBatch(1, 0), {}, data_of(runner, 0)).outputs
        outcomes.append({**runner.states(), **runner.optimizer_states(), "loss": losses[-1]["loss"], "later": evaluated["loss"]})
    plain_, found = outcomes
    assert found.keys() == plain_.keys()
    assert [name for name, value in plain_.items() if not np.array_equal(found[name], value)] == []


def test_a_site_measures_how_fast_its_ranks_exchange(site: SiteAttempt) -> None:
    report = site.measure("cpu")
    assert report.rank_rate > 1e6
    assert 0.0 < report.rank_latency < 1.0


def test_ranks_reach_nothing_but_each_other(site: SiteAttempt) -> None:
    assert set(site.holds) == set(PROTECTIONS)


def guard_of(zygote: Zygote) -> psutil.Process:
    """The guard of the newest site."""
    guards = [one for one in psutil.Process(zygote.pid).children(recursive=True) if len(one.children()) == 2]
    return max(guards, key=psutil.Process.create_time)


def ranks_of(guard: psutil.Process) -> list[psutil.Process]:
    return sorted(guard.children(), key=lambda one: one.pid)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_a_rank_ends_the_attempt(zygote: Zygote, rank: int) -> None:
    engine = SiteEngine(zygote, [ComputeDevice(name="cpu")] * 2)
    site = engine.attempt("cpu", 2 << 30)
    runner = opened(site)
    ranks_of(guard_of(zygote))[rank].kill()

    def compute() -> None:
        for step in range(100):  # the guard may need a moment
            runner.begin_forwards([(MicroBatch(step, index), {}, data_of(runner, index)) for index in range(2)])
            for index in range(2):
                runner.forward(MicroBatch(step, index), {}, data_of(runner, index))
            runner.discard()

    with pytest.raises(EngineCrashed, match=rf"^rank {rank} of 2 died of SIGKILL "):
        compute()
    assert site.lost
    again = opened(engine.attempt("cpu", 2 << 30))
    assert again.forward(MicroBatch(0, 0), {}, data_of(again, 0)).outputs.keys() == {"loss"}


@pytest.mark.parametrize("call", ["fold", "forward"])
def test_a_death_is_named_although_the_error_of_the_other_rank_arrives_first(zygote: Zygote, call: str) -> None:
    """Rank 0 waits for rank 1 when that one is killed. The guard is stopped until the error of rank 0 has arrived."""
    site = SiteEngine(zygote, [ComputeDevice(name="cpu")] * 2).attempt("cpu", 2 << 30)
    runner = opened(site, replace(SETTINGS, sharded=call == "forward"))
    guard, (first, second) = guard_of(zygote), runner.stages
    pending: list[Pending[object]] = []
    if call == "fold":
        pending += [first.begin_call("fold", lambda _: {"folds": (Fold(0, 9, 1),), "last": True})]  # type: ignore[list-item]
    else:
        pending += [first.begin_forward(MicroBatch(0, 0), {}, data_of(runner, 0))]  # type: ignore[list-item]
    guard.suspend()
    try:
        ranks_of(guard)[1].kill()
        assert site.ranks[0].answered([0], "the call") == [0]
        with pytest.raises(FarflungError, match=r"(closed|reset) by peer"):
            pending[0].result()
    finally:
        Timer(0.3, guard.resume).start()
    pending += [second.begin_call("fold" if call == "fold" else "assist_forward")]  # type: ignore[list-item]
    with pytest.raises(EngineCrashed, match=r"^rank 1 of 2 died of SIGKILL \(the site noticed in the call"):
        wait_for_all(pending, site.ranks, "the call")
    assert site.lost


def test_a_site_has_no_disk(site: SiteAttempt, tmp_path: Path) -> None:
    """Its ranks would write their states to one place of the file."""
    with pytest.raises(InputError, match=r'^the plan puts .* of stage 0 on a disk, and a site .* set plan.offload = "none"'):
        opened(site, replace(SETTINGS, offload=StateFile.create(tmp_path, 1 << 20)))


def test_an_error_of_one_rank_ends_the_wait_of_the_other(site: SiteAttempt) -> None:
    """Rank 1 has no such micro-batch, and rank 0 waits for its gradients."""
    runner = opened(site)
    fold = Fold(0, 9, 1)
    pending = [stage.begin_call("fold", lambda _: {"folds": (fold,), "last": True}) for stage in runner.stages]
    with pytest.raises(GraphError, match=r"^stage 0 has no gradients of micro-batch 9 on rank 1$"):
        wait_for_all(pending, site.ranks, "the fold")
    assert site.lost


def test_a_pass_that_failed_on_one_rank_keeps_no_rank_waiting_when_its_step_is_dropped(zygote: Zygote) -> None:
    """Rank 1 fails before it lends its parameters, and nobody has asked for the results. Any runner may be discarded first."""
    site = SiteAttempt(zygote, ["cpu", "cpu"], 2 << 30, Deadlines(floor=30.0, first=30.0))
    runner = opened(site, replace(SETTINGS, sharded=True))
    other = site.open(runner.subgraph, replace(SETTINGS, training=False), runner)
    runner.begin_forwards([(MicroBatch(0, 0), {}, data_of(runner, 0)), (MicroBatch(0, 1), {}, {})])
    with pytest.raises(FarflungError) as raised:
        other.discard()
    assert not isinstance(raised.value, EngineCrashed), "the error of rank 1, not of a rank that waited for it too long"
    assert site.lost


def test_a_pytorch_without_gloo(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(InputError) as raised:
        RankGroup(0, ["cpu", "cpu"], str(tmp_path))
    assert str(raised.value) == (
        f"a site needs torch.distributed with gloo, which PyTorch {torch.__version__} lacks here: "
        "install a PyTorch that has it, or join each device as a worker with --device"
    )
