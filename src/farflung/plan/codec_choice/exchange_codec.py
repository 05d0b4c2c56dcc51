"""``codec = "auto"`` of a sync strategy: replicas exchange by the codec with which it is soonest, within the job's error.

What may be chosen depends on what is exchanged. Gradients in every step go at a hundredth of the bytes as what lost least
there of what ``benchmarks loss-study`` tried: from scratch the largest 36th in 4 bits, in fine-tuning low-rank factors in
4 bits, of ranks by that share; both with error feedback that forgets. Pseudo-gradients go in 4 bits; parameters, whose errors
nothing takes back, in 8.
``codec.error`` bounds the choice: each codec has the least limit with which it is taken, for gradients not a typical error (a low
rank has none) but a place in the order of what the study lost. Seconds of encoding and decoding are twice those measured on one
thread, and what is sooner plain stays plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farflung.codecs.exchanged import coded_bytes
from farflung.errors import InputError
from farflung.job.spec import JobSpec
from farflung.plan.codec_choice.compression import codec_of
from farflung.sync import Sent, Strategy, get_strategy
from farflung.units import Seconds

__all__ = ["Group", "job_strategy", "sync_settings", "why_sync"]

_AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What the replicas of a stage exchange: bytes of float32, how many they are, the rate of their slowest link."""

    nbytes: float
    members: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """``error``: the least limit with which it is taken. ``seconds``: of encoding or decoding one element."""

    codec: str
    error: float
    seconds: float
    memory: str = "none"

    def takes(self, group: Group, job: JobSpec) -> float:
        """Encode the own, send it, and decode those of all others."""
        numel = max(1, round(group.nbytes / 4))
        share = _made(job, self).traits.link_share(group.members)
        coding = numel * self.seconds * group.members
        return share * min(group.nbytes, coded_bytes(self.codec, [(numel,)])) / group.bytes_per_second + coding


#: The first is plain; then ever fewer bytes.
_OFFERS = (
    _Offer(codec="identity", error=0.0, seconds=0.0),
    _Offer(codec="bf16", error=0.005, seconds=2e-9),
    _Offer(codec="int8", error=0.02, seconds=3e-9),
    _Offer(codec="int4", error=0.1, seconds=5.6e-9),
)
_SCRATCH = _Offer(codec="topk:ratio=36,values=int4", error=0.2, seconds=9.6e-9, memory="error_feedback:decay=0.7")
_TUNING = _Offer(codec="lowrank:rank=16,values=int4,ratio=100", error=0.2, seconds=12.6e-9, memory="error_feedback:decay=0.9")
#: How many of them may be taken, by what is exchanged.
_MOST = {Sent.SCALARS: 1, Sent.PARAMETERS: 3, Sent.PSEUDO_GRADIENTS: 4, Sent.GRADIENTS: 5}


def sync_settings(job: JobSpec, groups: Sequence[Group] = ()) -> dict[str, Any]:
    """The settings of the job's strategy with its codec chosen for ``groups`` (none: for slow links).

    Raises:
        InputError: the strategy has no such setting, or a memory is given beside ``codec = "auto"``.
    """
    settings: dict[str, Any] = dict(job.sync.settings)
    if settings.get("codec") != _AUTO:
        return settings
    return settings | _chosen(_best(job, groups))


def job_strategy(job: JobSpec, groups: Sequence[Group] = ()) -> Strategy:
    """The job's strategy, ``auto`` chosen as by ``sync_settings``.

    Raises:
        InputError: there is no such strategy or setting.
    """
    return get_strategy(job.sync.strategy, **sync_settings(job, groups))


def why_sync(job: JobSpec, groups: Sequence[Group]) -> str:
    """What was chosen and why, for people; empty where nothing was to choose."""
    if job.sync.settings.get("codec") != _AUTO or not groups:
        return ""
    chosen = _best(job, groups)
    plain, seconds = (Seconds(_slowest(one, groups, job)) for one in (_OFFERS[0], chosen))
    memory = f" with {chosen.memory}" if chosen.memory != "none" else ""
    if chosen is _OFFERS[0]:
        return f"replicas exchange without a codec in {plain}: no codec is faster within error {job.codec.error:g}"
    return f"replicas exchange with {chosen.codec}{memory} in {seconds} (without codec {plain}), within error {job.codec.error:g}"


def _best(job: JobSpec, groups: Sequence[Group]) -> _Offer:
    offers = _allowed(job)
    return min(offers, key=lambda one: _slowest(one, groups, job)) if groups else offers[-1]


def _slowest(offer: _Offer, groups: Sequence[Group], job: JobSpec) -> float:
    return max((offer.takes(group, job) for group in groups), default=0.0)


def _allowed(job: JobSpec) -> list[_Offer]:
    """The plain one, and what strategy and error allow."""
    if "memory" in job.sync.settings:
        raise InputError(
            f"sync.settings.memory = {job.sync.settings['memory']!r} with codec = 'auto', which chooses both: remove memory, or "
            "name a codec"
        )
    plain = _made(job, _OFFERS[0])
    if job.sync.patience:  # sums on the way
        return [_OFFERS[0]]
    fewest = _TUNING if codec_of(job).phase == "fine-tuning" else _SCRATCH
    offers = (*_OFFERS, fewest)[: _MOST[plain.traits.sent]]
    return [one for one in offers if one.error <= job.codec.error and _takes(job, one)]


def _takes(job: JobSpec, offer: _Offer) -> bool:
    """Whether the strategy has nothing against it (sets that adapt add up on the way, robust rules want all coordinates)."""
    try:
        _made(job, offer)
    except InputError:
        return False
    return True


def _made(job: JobSpec, offer: _Offer) -> Strategy:
    settings = {key: value for key, value in job.sync.settings.items() if key not in ("codec", "memory")}
    return get_strategy(job.sync.strategy, **{**settings, **_chosen(offer)})


def _chosen(offer: _Offer) -> dict[str, Any]:
    return {"codec": offer.codec} | ({"memory": offer.memory} if offer.memory != "none" else {})
