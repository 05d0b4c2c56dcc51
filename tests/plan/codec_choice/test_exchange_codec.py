"""What replicas exchange where a strategy's codec is ``auto``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.plan.codec_choice.exchange_codec import _OFFERS, Group, _allowed, _best, job_strategy, sync_settings, why_sync
from farflung.sync import STRATEGIES, get_strategy


def job(strategy: str = "ssgd", error: float = 0.2, patience: float = 0.0, phase: str = "scratch", **given: Any) -> JobSpec:
    return make_job(
        {
            "plan": {"replicas": 2},
            "codec": {"error": error, "phase": phase},
            "sync": {"strategy": strategy, "patience": patience, "settings": {"codec": "auto"} | given},
        }
    )


def group(rate: float, nbytes: float = 4e6, members: int = 2) -> Group:
    return Group(nbytes=nbytes, members=members, bytes_per_second=rate)


def codecs(wanted: JobSpec) -> list[str]:
    return [offer.codec for offer in _allowed(wanted)]


def test_gradients_over_slow_links_go_at_a_hundredth_of_the_bytes() -> None:
    assert sync_settings(job()) == {"codec": "topk:ratio=36,values=int4", "memory": "error_feedback:decay=0.7"}
    assert sync_settings(job(phase="fine-tuning")) == {
        "codec": "lowrank:rank=16,values=int4,ratio=100",
        "memory": "error_feedback:decay=0.9",
    }
    assert sync_settings(job(), [group(1e5), group(1e12)]) == sync_settings(job())
    assert sync_settings(job(), [group(1e12)]) == {"codec": "identity"}
    strategy = job_strategy(job("diloco", sync_every=5))
    assert (strategy.traits.codec, strategy.traits.sync_every) == ("int4", 5)


def test_what_is_exchanged_and_the_error_bound_the_choice() -> None:
    assert codecs(job())[-1].startswith("topk")
    assert codecs(job("diloco")) == ["identity", "bf16", "int8", "int4"]
    assert codecs(job("local_sgd")) == ["identity", "bf16", "int8"]
    assert codecs(job("robust"))[-1] == "int4", "it wants all coordinates"
    assert codecs(job(error=0.01)) == ["identity", "bf16"]
    assert codecs(job(error=0.0)) == codecs(job(patience=1.0)) == ["identity"], "sums on the way have no codec"


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"seed_and_scalar", "fedkseed"}))
def test_every_strategy_takes_what_is_chosen(name: str) -> None:
    settings = sync_settings(job(name))
    get_strategy(name, **settings)


@given(
    st.sampled_from(["scratch", "fine-tuning"]),
    st.lists(st.builds(group, st.floats(1e3, 1e12), st.floats(1e3, 1e9), st.integers(2, 8)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=80)
def test_never_slower_than_plain(phase: str, groups: list[Group]) -> None:
    wanted = job(phase=phase)
    chosen = _best(wanted, groups)
    slowest = max(chosen.takes(one, wanted) for one in groups)
    assert slowest <= max(_OFFERS[0].takes(one, wanted) for one in groups)


def test_it_says_why() -> None:
    assert why_sync(job(), []) == ""
    tuned = job(phase="fine-tuning")
    text = "replicas exchange with lowrank:rank=16,values=int4,ratio=100 with error_feedback:decay=0.9 in"
    assert text in why_sync(tuned, [group(1e5)])
    assert "without a codec in" in why_sync(job(), [group(1e12)])
    named = make_job({"plan": {"replicas": 2}, "sync": {"strategy": "ssgd", "settings": {"codec": "int8"}}})
    assert sync_settings(named) == {"codec": "int8"}
    assert why_sync(named, [group(1e5)]) == ""


def test_a_memory_beside_auto_is_refused() -> None:
    with pytest.raises(InputError, match=r"sync.settings.memory = 'dgc' with codec = 'auto', which chooses both: remove memory"):
        sync_settings(job(memory="dgc"))
