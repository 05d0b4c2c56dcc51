"""``messages``: the time to read a message: the header from its bytes, then its type and bounds by msgspec or by pydantic.

Both libraries get the header that the frame decoder returns, and both check every type, length and range. Ways take turns, so
that a change of the machine's clock rate meets all of them (docs/decisions/0020-typed-messages.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Field

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.data import Value, ValueKey
from farflung.messages.reports import Stepped
from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode, encode
from farflung.wire.frames import Frame, decode_frame, encode_frame

__all__ = ["Messages", "MessagesSettings", "comparison"]

_MOST = 2**53
_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Index = Annotated[int, Field(ge=0, le=1_000_000)]
_Run = Annotated[str, Field(max_length=200)]
_Label = Annotated[str, Field(max_length=60)]
_Name = Annotated[str, Field(max_length=4000)]
_Pairs = Annotated[list[tuple[_Index, _Index, _Count]], Field(max_length=100_000)]


class _Strict(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Value(_Strict):
    """``farflung.messages.data.Value``, as pydantic checks it."""

    run: _Run
    key: tuple[Literal["value"], _Label, _Count, _Index, _Name, _Index, _Index, bool]
    source: Annotated[_Index, Field(alias="from")]
    array: tuple[_Label, Annotated[list[_Count], Field(max_length=32)], Annotated[list[_Count], Field(max_length=32)] | None]


class _Stepped(_Strict):
    """``farflung.messages.reports.Stepped``, as pydantic checks it."""

    run: _Run
    attempt: Annotated[int, Field(ge=1, le=_MOST)]
    step: _Count
    seconds: float
    busy: float
    wait: float
    sent: _Pairs
    dense: _Pairs
    stage_busy: Annotated[list[tuple[_Index, float]], Field(max_length=100_000)]
    loss: float | None
    losses: Annotated[list[float], Field(max_length=1_000_000)]
    samples: _Count
    skipped: bool
    rate: float
    grad_norm: float | None
    divergence: float | None
    codecs: Annotated[list[tuple[_Index, _Index, float, float, float | None]], Field(max_length=100_000)]


_STEP = Stepped(
    run="run-fc486370",
    attempt=1,
    step=7,
    seconds=0.0442,
    busy=0.0099,
    wait=0.0336,
    sent=((1, 0, 19784),),
    dense=((1, 0, 41984),),
    stage_busy=((1, 0.0099),),
    loss=5.5425,
    losses=(5.5498, 5.5315),
    samples=5,
    skipped=False,
    rate=0.01,
    grad_norm=None,
    divergence=None,
    codecs=((0, 1, 0.0, 0.0019, None), (1, 0, 0.0013, 0.0, 0.1298)),
)
_VALUE = Value(
    run="run-fc486370",
    key=ValueKey(phase="train", step=7, micro_batch=0, value="add_3", source=0, target=1, gradient=False),
    source=0,
    array=ArrayHeader(dtype="float32", shape=(3, 16, 16), strides=None),
    sections=(b"",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesSettings(Settings):
    """``times``: runs of each way, with ``messages`` messages each."""

    times: int = 15
    messages: int = 2000


class Messages:
    """Time to read messages."""

    name = "messages"
    summary = "time to read a value and a step report: frame header, msgspec types, and pydantic for comparison"

    def settings(self, quick: bool) -> MessagesSettings:
        """Quick: one short run of each way."""
        return MessagesSettings(quick=True, times=1, messages=50) if quick else MessagesSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, MessagesSettings)
        ways = {
            **_ways("value", _VALUE, Channel.DATA, _Value),
            **_ways("step report", _STEP, Channel.REPORTS, _Stepped),
        }
        say(f"{settings.times} runs of {settings.messages} messages: {', '.join(ways)}")
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(settings.times):
            for name, read in ways.items():
                begin = perf_counter()
                for _ in range(settings.messages):
                    read()
                seconds[name].append((perf_counter() - begin) / settings.messages)
        medians = {name: 1e6 * statistics.median(found) for name, found in seconds.items()}
        return Report(
            figures={"median_microseconds": medians},
            columns=("message, way", "microseconds", "spread"),
            rows=[
                (name, f"{median:.1f}", f"{1e6 * min(seconds[name]):.1f} to {1e6 * max(seconds[name]):.1f}")
                for name, median in medians.items()
            ],
            checks=[comparison(medians, kind, judged=not settings.quick) for kind in ("value", "step report")],
        )


def _ways(kind: str, message: Message, channel: Channel, model: type[_Strict]) -> Mapping[str, Callable[[], object]]:
    frame: Frame = encode(message)
    data = b"".join(map(bytes, encode_frame(frame)))
    read = decode_frame(data)
    decode(read, channel)  # a way that can't read the message raises here, before the measurement
    model.model_validate(read.header)
    return {
        f"{kind}: header from bytes": partial(decode_frame, data),
        f"{kind}: msgspec, from the header": partial(decode, read, channel),
        f"{kind}: pydantic, from the header": partial(model.model_validate, read.header),
    }


def comparison(medians: Mapping[str, float], kind: str, *, judged: bool) -> Check:
    """Compare the medians of both libraries for messages of ``kind``."""
    ours, peer = medians[f"{kind}: msgspec, from the header"], medians[f"{kind}: pydantic, from the header"]
    return Check(
        name=f"msgspec over pydantic, {kind}",
        target="faster",
        measured=f"{ours / peer:.2f} x the time",
        passed=ours < peer if judged else None,
    )
