"""Values that engines encode: the same runs, bit by bit, as with values that sender threads encode."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.engines.base import Array
from farflung.engines.encoded_value import EncodedValue
from farflung.engines.isolated import IsolatedEngine, Zygote
from farflung.graph.cut import Edge
from farflung.plan.model import CodecChoice, LinkPlan, SyncPlan
from farflung.step.run_setup import Phase
from farflung.step.transfer.device_codings import codings_of
from farflung.step.transfer.value_transfer import ValueTransfer
from tests.support.steps.executor_threads import EVERY_STEP, Case, Ran, assert_goes_on, differing, job_of, other, run_threads
from tests.support.steps.sample_cache_cases import BOTH, CODEC, every_link
from tests.support.steps.sample_cache_cases import case_of as samples_case_of
from tests.support.steps.small_runs import small_job, small_plan, small_setup

SIZES = [40, 24, 32]
CODECS: dict[str, CodecChoice] = {
    "int8": CodecChoice(name="int8", params=(("block", 32),)),
    "rotated int4": CodecChoice(name="quantized", params=(("bits", 4), ("block", "row"), ("rotate", 1))),
    "stochastic int4": CodecChoice(name="int4", params=(("block", 32), ("rounding", "stochastic"), ("rotate", 1))),
    "top-k": CodecChoice(name="topk", params=(("ratio", 8.0), ("values", "float16"))),
}


class Sent:
    """How many values and gradients went to other workers, by whether the engine had encoded them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[bool] = Counter()
        send = ValueTransfer.send

        def counted(
            transfer: ValueTransfer,
            phase: Phase,
            step: int,
            micro_batch: int,
            edge: Edge,
            value: Array | EncodedValue,
            *,
            gradient: bool,
        ) -> None:
            self.counts[isinstance(value, EncodedValue)] += 1
            send(transfer, phase, step, micro_batch, edge, value, gradient=gradient)

        monkeypatch.setattr(ValueTransfer, "send", counted)


def case_of(encoder: str, choice: CodecChoice, devices: str, farther: CodecChoice | None = None, **changes: Any) -> Case:
    """``farther``: the codec of links that skip stages."""
    links = []
    for source, target in itertools.combinations(range(len(devices)), 2):
        codec = choice if target == source + 1 else farther or choice
        links.append(LinkPlan(source=source, target=target, activations=codec, gradients=codec))
    case_changes = {key: changes.pop(key) for key in ("replicas", "engine", "recompute", "schedule") if key in changes}
    job = job_of(micro_batch_sizes=SIZES, codec={"name": "int8", "encoder": encoder}, **changes)
    return Case(job=job, devices=devices, links=links, cut_seed=3, **case_changes)


def ran(*words: Any, **changes: Any) -> Ran:
    return run_threads(case_of(*words, **changes))


def equal(one: Ran, other: Ran) -> bool:
    assert one.micro_losses == other.micro_losses
    assert differing(one.gradients, other.gradients) == []
    assert differing(one.states, other.states) == []
    return True


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_is_the_same_wherever_values_are_encoded(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ran("host", CODECS[codec], "ab")
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS[codec], "ab"))
    assert sent.counts[True] > 2 * sent.counts[False]


@pytest.mark.parametrize("devices", ["aba", "abcab"])
def test_values_with_readers_here_and_elsewhere(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ran("host", CODECS["stochastic int4"], devices)
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS["stochastic int4"], devices))
    assert sent.counts[True]


def test_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker a has a replica of both stages: some micro-batches stay there, others leave."""
    replicas = {0: [("a", range(2)), ("c", range(2, 3))], 1: [("b", range(1)), ("a", range(1, 3))]}
    host = ran("host", CODECS["rotated int4"], "ab", replicas=replicas)
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS["rotated int4"], "ab", replicas=replicas))
    assert sent.counts[True]
    assert sent.counts[False]


def test_narrow_numbers_and_split_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"precision": "bf16", "schedule": "zb-h1"}
    host = ran("host", CODECS["top-k"], "ab", **changes)
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS["top-k"], "ab", **changes))
    assert sent.counts[True]


@pytest.mark.parametrize("remembering", ["values", "gradients"])
def test_beside_a_sample_cache_the_other_direction_is_encoded(remembering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there, back = (BOTH[0], CODEC) if remembering == "values" else (CODEC, BOTH[1])
    case = samples_case_of(links=every_link(3, there, back), devices=("a", "b", "c"))
    host = run_threads(case)
    sent = Sent(monkeypatch)
    codec = case.job.codec.model_copy(update={"encoder": "device"})
    device = run_threads(other(case, job=case.job.model_copy(update={"codec": codec})))
    assert equal(host, device)
    assert sent.counts[True]
    assert sent.counts[False]


def test_stages_that_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    host = ran("host", CODECS["stochastic int4"], "ab", recompute=True)
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS["stochastic int4"], "ab", recompute=True))
    assert sent.counts[True]


def test_a_resumed_run_draws_the_same_numbers(tmp_path: Path) -> None:
    assert_goes_on(case_of("device", CODECS["stochastic int4"], "ab", checkpoint=EVERY_STEP), 1, tmp_path)


def test_a_process_of_its_own_gives_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    zygote = Zygote()
    try:
        host = ran("host", CODECS["stochastic int4"], "ab", engine=IsolatedEngine(zygote))
        sent = Sent(monkeypatch)
        assert equal(host, ran("device", CODECS["stochastic int4"], "ab", engine=IsolatedEngine(zygote)))
    finally:
        zygote.close()
    assert sent.counts[True] > 2 * sent.counts[False]


# -- which values ---------------------------------------------------------------------------------------------------------


def coded(choice: CodecChoice, device: str = "cuda:0", **changes: Any) -> int:
    setup = replace(small_setup("a", small_plan(codec=choice)), job=small_job(**changes))
    return len(codings_of(setup, 0, device))


def test_accelerators_encode_and_cpus_leave_it_to_the_senders() -> None:
    int8 = {"name": "int8"}
    assert coded(CODECS["int8"], codec=int8) == 1
    assert coded(CODECS["int8"], "cpu", codec=int8) == 0
    assert coded(CODECS["int8"], "cpu", codec=int8 | {"encoder": "device"}) == 1
    assert coded(CODECS["int8"], codec=int8 | {"encoder": "host"}) == 0


@pytest.mark.parametrize("name", ["identity", "fp16", "lowrank", "randomk", "sign"])
def test_codecs_without_a_version_for_devices_stay_on_the_host(name: str) -> None:
    assert coded(CodecChoice(name=name), codec={"name": name}) == 0


def test_what_reads_plain_values_keeps_them_plain() -> None:
    codec = {"name": "int8"}
    remembered = replace(CODECS["int8"], memory="difference")
    assert coded(remembered, codec=codec | {"memory": "difference"}) == 0
    assert coded(CODECS["int8"], codec=codec, plan={"helpers": True}) == 0


@pytest.mark.parametrize(("strategy", "count"), [("robust", 0), ("local_sgd", 1)])
def test_strategies_that_look_for_spoilt_values_keep_them_plain(strategy: str, count: int) -> None:
    plan = replace(small_plan(codec=CODECS["int8"]), sync=SyncPlan(strategy=strategy))
    setup = small_setup("a", plan, codec={"name": "int8"})
    assert len(codings_of(setup, 0, "cuda")) == count


def test_a_coding_names_value_codec_and_micro_batches() -> None:
    plan = small_plan(codec=CODECS["stochastic int4"])
    found = [codings_of(small_setup(device, plan, codec={"name": "int4"}), stage, "cuda") for stage, device in enumerate("ab")]
    assert [(len(codings), str(codings[0].value), codings[0].gradient) for codings in found] == [
        (1, "bend", False),
        (1, "bend", True),
    ]
    for (coding,) in found:
        assert (coding.name, coding.params) == ("int4", CODECS["stochastic int4"].params)
        assert coding.micro_batches == (0, 1)


def test_a_value_that_travels_by_two_codecs_leaves_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value with a farther reader goes there by another codec than to the next stage."""
    farther = CodecChoice(name="quantized", params=(("bits", 4), ("block", 32)))
    host = ran("host", CODECS["int8"], "abc", farther=farther)
    sent = Sent(monkeypatch)
    assert equal(host, ran("device", CODECS["int8"], "abc", farther=farther))
    assert sent.counts[True]
    assert sent.counts[False]
