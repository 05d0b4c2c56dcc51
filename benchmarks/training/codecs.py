"""``codecs``: bytes for each kept element against the entropy, payloads against the paper's format, speed against
``torch.topk``; size, error and seconds of every codec on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.codecs import Codec, get_codec, measure
from farflung.codecs.base import Array
from farflung.codecs.samples import SampleCoder, SampleTable
from farflung.codecs.sparse.indices import encode_indices
from farflung.codecs.sparse.selection import select
from farflung.graph.ir import TensorSpec
from farflung.plan import CodecChoice
from farflung.plan.codec_choice.auto_codec import Flow, allocate_codecs
from farflung.units import BytesPerSecond

__all__ = ["Codecs", "CodecsSettings", "entropy_bits", "heavy_tailed"]

_SAMPLES = 8
_INDEX_TARGET = 1.08
_PAYLOAD_TARGET = 3.8
_SPEED_TARGET = 6.0
#: What the table of all codecs shows.
_MEMBERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("identity", "identity", {}),
    ("fp16", "fp16", {}),
    ("bf16", "bf16", {}),
    ("int8", "int8", {}),
    ("int8 stochastic", "int8", {"rounding": "stochastic"}),
    ("int4", "int4", {}),
    ("int4 rotated", "int4", {"rotate": True}),
    ("int4 stochastic", "int4", {"rounding": "stochastic"}),
    ("3 bits rotated", "quantized", {"bits": 3, "rotate": True}),
    ("int2", "int2", {}),
    ("int2 rotated", "int2", {"rotate": True}),
    ("sign", "sign", {}),
    ("topk 100", "topk", {"ratio": 100}),
    ("topk 100 float16", "topk", {"ratio": 100, "values": "float16"}),
    ("topk 100 int8", "topk", {"ratio": 100, "values": "int8"}),
    ("topk 100 int4", "topk", {"ratio": 100, "values": "int4"}),
    ("topk 100 blocks float16", "topk", {"ratio": 100, "values": "float16", "selection": "blocks"}),
    ("topk 100 sampled float16", "topk", {"ratio": 100, "values": "float16", "selection": "sampled"}),
    ("topk 10 float16", "topk", {"ratio": 10, "values": "float16"}),
    ("topk 1000 float16", "topk", {"ratio": 1000, "values": "float16"}),
    ("topk 100 paper", "topk", {"ratio": 100, "format": "paper"}),
    ("randomk 100 float16", "randomk", {"ratio": 100, "values": "float16"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecsSettings(Settings):
    """Sizes in millions of elements (2^20), kept shares in elements of a thousand. ``repeats``: of which the median counts.

    ``device``: where encoding also races the copy to the host (empty: nowhere)."""

    millions: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)
    kept_of_thousand: tuple[float, ...] = (1.0, 10.0, 100.0)
    speed_millions: float = 16.0
    members_millions: float = 4.0
    auto_rates: tuple[str, ...] = ("8 Mbit/s", "80 Mbit/s", "1 Gbit/s", "10 Gbit/s")
    auto_error: float = 0.2
    repeats: int = 5
    device: str = ""


class Codecs:
    """Bytes and speed of the codecs."""

    name = "codecs"
    summary = "bytes of indices against their entropy, payloads against the paper's format, speed against torch.topk"

    def settings(self, quick: bool) -> CodecsSettings:
        """Quick: 2^16 elements."""
        if quick:
            return CodecsSettings(quick=True, millions=(0.0625,), speed_millions=0.0625, members_millions=0.0625, repeats=2)
        return CodecsSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure sizes, then speeds with one thread."""
        assert isinstance(settings, CodecsSettings)
        sizes = [_sizes(round(m * (1 << 20)), settings, say) for m in settings.millions]
        flat = [item for group in sizes for item in group]
        speed = _speed(settings, say)
        members = _members(settings, say)
        automatic = _automatic(settings, say)
        raced = _raced(settings, say) if settings.device else {}
        figures = {"index_bytes": flat, "speed": speed, "members": members, "auto": automatic, "device": raced}
        columns = ("codec", "dense / payload", "relative error", "encode ms / M", "decode ms / M")
        rows = [
            (item["codec"], item["ratio"], item["error"], item["encode_ms_per_million"], item["decode_ms_per_million"])
            for item in members
        ]
        return Report(
            figures=figures,
            columns=columns,
            rows=rows,
            checks=(*_checks(flat, speed, settings), _auto_check(automatic, settings), *_race_checks(raced, settings)),
        )


def heavy_tailed(numel: int, seed: int) -> Array:
    """``numel`` float32 numbers, Student's t with 3 degrees of freedom, made in pieces so that little memory is taken."""
    result = np.empty(numel, np.float32)
    generator = np.random.default_rng(seed)
    for first in range(0, numel, 1 << 20):
        part = result[first : first + (1 << 20)]
        part[:] = generator.standard_t(3, part.size)
    return result


def entropy_bits(numel: int, count: int) -> float:
    """log2 of the number of ways to choose ``count`` of ``numel``, for each chosen one."""
    return (lgamma(numel + 1) - lgamma(count + 1) - lgamma(numel - count + 1)) / log(2.0) / count


def _sizes(numel: int, settings: CodecsSettings, say: Say) -> list[dict[str, Any]]:
    say(f"bytes at {numel} elements")
    array = heavy_tailed(numel, settings.seed)
    found = []
    for kept in settings.kept_of_thousand:
        codec = get_codec("topk", ratio=1000 / kept, values="float16")
        payload = codec.encode(array)
        coded = encode_indices(select(array, payload.fields["count"]))
        count = coded.count
        found.append(
            {
                "elements": numel,
                "density": kept / 1000,
                "index_bits": 8 * coded.nbytes / count,
                "entropy_bits": entropy_bits(numel, count),
                "over_entropy": 8 * coded.nbytes / count / entropy_bits(numel, count),
                "payload_bytes_per_kept": payload.nbytes / count,
                "paper_over_payload": 12 * count / payload.nbytes,
            }
        )
    return found


def _speed(settings: CodecsSettings, say: Say) -> dict[str, Any]:
    """Encode and decode at 1 %, in turns with the peer."""
    import torch

    from farflung.engines.torch.codecs.topk import plain_topk, plain_untopk

    numel = round(settings.speed_millions * (1 << 20))
    array = heavy_tailed(numel, settings.seed)
    codec = get_codec("topk", ratio=100, values="float16")
    payload = codec.encode(array)
    values, indices = plain_topk(array, payload.fields["count"])
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    say(f"speed at {numel} elements")
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: codec.encode(array),
        "decode": lambda: codec.decode(payload),
        "peer_encode": lambda: plain_topk(array, values.size),
        "peer_decode": lambda: plain_untopk(values, indices, numel),
    }
    try:
        times = _in_turns(work, settings.repeats)
    finally:
        torch.set_num_threads(before)
    ratios = [
        (times["peer_encode"][i] + times["peer_decode"][i]) / (times["encode"][i] + times["decode"][i])
        for i in range(settings.repeats)
    ]
    medians = {f"{name}_seconds": median(spent) for name, spent in times.items()}
    return {"elements": numel, "density": 0.01, **medians, "ratios": ratios, "ratio": median(ratios)}


def _raced(settings: CodecsSettings, say: Say) -> dict[str, float]:
    """Seconds in which an array, or its payload, comes from the device to the host."""
    import torch

    from farflung.engines.torch.arrays import to_array
    from farflung.engines.torch.codecs import encode_tensor

    tensor = torch.from_numpy(heavy_tailed(round(settings.speed_millions * (1 << 20)), settings.seed)).to(settings.device)
    int4, topk = get_codec("int4", rotate=True), get_codec("topk", ratio=100)
    work: dict[str, Callable[[], object]] = {
        "copy": lambda: to_array(tensor, copy=True),
        "int4 rotated": lambda: encode_tensor(int4, tensor),
        "topk 100": lambda: encode_tensor(topk, tensor),
    }
    for name, begin in work.items():
        say(f"{name} from {settings.device}")
        begin()  # kernels are compiled
    return {name: median(spent) for name, spent in _in_turns(work, settings.repeats).items()}


def _race_checks(raced: dict[str, float], settings: CodecsSettings) -> list[Check]:
    return [
        Check(
            name=f"{name} on {settings.device}: seconds / those of copying the plain array to the host",
            target="less than 1",
            measured=f"{seconds / raced['copy']:.3f}",
            passed=None if settings.quick else seconds < raced["copy"],
        )
        for name, seconds in raced.items()
        if name != "copy"
    ]


def _members(settings: CodecsSettings, say: Say) -> list[dict[str, Any]]:
    numel = round(settings.members_millions * (1 << 20))
    array = heavy_tailed(numel, settings.seed)
    found = []
    for label, name, params in _MEMBERS:
        say(label)
        found.append({"codec": label, "params": params, **_member(get_codec(name, **params), array, settings)})
    return found


def _member(codec: Codec, array: Array, settings: CodecsSettings) -> dict[str, Any]:
    payload = codec.encode(array)
    result = codec.decode(payload)
    times = _in_turns({"encode": lambda: codec.encode(array), "decode": lambda: codec.decode(payload)}, settings.repeats)
    millions = array.size / 1e6
    return {
        "ratio": array.nbytes / payload.nbytes,
        "error": float(np.linalg.norm(array - result) / np.linalg.norm(array)),
        "encode_ms_per_million": median(times["encode"]) * 1e3 / millions,
        "decode_ms_per_million": median(times["decode"]) * 1e3 / millions,
    }


#: What ``auto`` is asked for: values and gradients from scratch, differences of samples that come again in fine-tuning.
_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("values", {}),
    ("gradients", {"backward": True}),
    ("fine-tuned values, differences", {"tuning": True, "memory": "difference"}),
)


def _automatic(settings: CodecsSettings, say: Say) -> list[dict[str, Any]]:
    """What ``auto`` takes for one value on links of some rates, and the measured seconds of encode, send and decode."""
    array = heavy_tailed(round(settings.members_millions * (1 << 20)), settings.seed)
    spec = TensorSpec(dtype="float32", shape=array.shape)
    found = []
    for rate in settings.auto_rates:
        for name, way in _WAYS:
            flow = Flow(tensors=(spec,), latency=0.0, bytes_per_second=BytesPerSecond.parse(rate), **way)
            (choice,) = allocate_codecs([flow], settings.auto_error)
            say(f"auto on {rate}, {name}: {choice}")
            runs = _timed(choice, array, flow.bytes_per_second, settings.repeats)
            plain = array.nbytes / flow.bytes_per_second
            row = {"rate": rate, "way": name, "codec": str(choice), "seconds": median(runs), "worst": max(runs)}
            found.append(row | {"plain_seconds": plain})
    return found


def _timed(choice: CodecChoice, array: Array, rate: float, repeats: int) -> list[float]:
    """Seconds of encode, send and decode; with differences of what both ends hold of 8 samples."""
    codec = get_codec(choice.name, **dict(choice.params))
    if not choice.memory:
        return [measure(codec, array).seconds(0.0, rate) for _ in range(repeats)]
    ids, width = np.arange(_SAMPLES, dtype=np.uint64), array.size // _SAMPLES
    here, there = (SampleTable(limit=1 << 32) for _ in range(2))
    coder, found = SampleCoder(codec=codec), []
    for _ in range(repeats):
        begin = time.perf_counter()
        sent = coder.encode(array[: _SAMPLES * width], ids, here)
        coder.decode(sent, ids, there, width)
        found.append(time.perf_counter() - begin + sum(payload.nbytes for payload in sent) / rate)
    return found


def _auto_check(found: list[dict[str, Any]], settings: CodecsSettings) -> Check:
    slower = [item["rate"] for item in found if item["codec"] != "identity" and item["seconds"] > item["plain_seconds"]]
    shares = "; ".join(
        f"{rate} " + ", ".join(f"{item['seconds'] / item['plain_seconds']:.2f}" for item in found if item["rate"] == rate)
        for rate in settings.auto_rates
    )
    return Check(
        name=f"auto: encode, send and decode / plain send ({', '.join(name for name, _ in _WAYS)})",
        target="at most 1 on every link",
        measured=shares,
        passed=None if settings.quick else not slower,
        note="plain sending is counted as bytes / rate",
    )


def _in_turns(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, call in work.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def _checks(sizes: list[dict[str, Any]], speed: dict[str, Any], settings: CodecsSettings) -> tuple[Check, ...]:
    note = "small arrays are mostly head" if settings.quick else ""
    worst = max(item["over_entropy"] for item in sizes)
    hundredth = [item["paper_over_payload"] for item in sizes if item["density"] == 0.01]
    least = min(hundredth, default=0.0)

    def judged(passed: bool) -> bool | None:
        return None if settings.quick else passed

    return (
        Check(
            name="index bytes / entropy bound, worst",
            target=f"at most {_INDEX_TARGET}",
            measured=f"{worst:.4f}",
            passed=judged(worst <= _INDEX_TARGET),
            note=note,
        ),
        Check(
            name="paper's format / payload at 1 %, 16-bit values, worst",
            target=f"at least {_PAYLOAD_TARGET}",
            measured=f"{least:.2f}",
            passed=judged(bool(hundredth) and least >= _PAYLOAD_TARGET),
            note=note,
        ),
        Check(
            name=f"torch.topk / encode and decode, {speed['elements']} elements at 1 %",
            target=f"at least {_SPEED_TARGET}",
            measured=f"{speed['ratio']:.1f}",
            passed=judged(speed["ratio"] >= _SPEED_TARGET),
            note=note,
        ),
    )
