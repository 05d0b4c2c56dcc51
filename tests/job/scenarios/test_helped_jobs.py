"""What a job with helpers must keep to."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.job import make_job


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sync": {"strategy": "diloco"}}, r"plan\.helpers with sync\.strategy = 'diloco': helpers' gradients are summed in the"),
        ({"sync": {"order": "any"}}, r"plan\.helpers with sync\.order = 'any': helpers' gradients are summed in the job's order"),
        ({"codec": {"name": "int8", "memory": "both"}}, r"plan\.helpers with codec\.memory = 'both': slices come in any order"),
    ],
)
def test_what_needs_an_order_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_job({"name": "x", "data": {"kind": "caller"}, "plan": {"helpers": True, "replicas": 2}, **changes})


def test_a_job_may_have_helpers() -> None:
    job = make_job({"name": "x", "data": {"kind": "caller"}, "plan": {"helpers": True}})
    assert job.plan.helpers


def test_the_links_of_a_job_with_helpers_may_have_a_codec() -> None:
    job = make_job({"name": "x", "data": {"kind": "caller"}, "plan": {"helpers": True}, "codec": {"name": "topk"}})
    assert job.codec.name == "topk"


def test_a_delayed_update_is_for_helpers() -> None:
    with pytest.raises(InputError, match=r"optimizer\.delayed = true hides the way of parameters to helpers.*set plan\.helpers"):
        make_job({"name": "x", "data": {"kind": "caller"}, "optimizer": {"delayed": True}})


def test_duplicates_are_for_helpers() -> None:
    with pytest.raises(InputError, match=r"plan\.duplicates = true goes with helpers only: set plan\.helpers = true, or leave"):
        make_job({"name": "x", "data": {"kind": "caller"}, "plan": {"duplicates": True}})
