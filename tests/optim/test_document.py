"""Rule books as documents: what is written is read, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

from farflung.errors import GraphError, InputError
from farflung.frontends.optimizers.capture import Trained, capture_rules
from farflung.job import make_job
from farflung.optim import check_optimizer, read_rules, write_rules


def written(kind: Any = torch.optim.NAdam, **settings: Any) -> str:
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = kind([parameter], **settings)
    item = Trained(group=0, optimizer=optimizer, settings=optimizer.param_groups[0], dtype=torch.float32, shape=(3, 2))
    return write_rules(capture_rules([item]))


TEXT = written()


def test_round_trip() -> None:
    assert write_rules(read_rules(TEXT)) == TEXT


def test_elementwise_optimizers_have_one_rule_for_all_shapes() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    shapes = [(3,), (4, 5), (2, 3, 4), (6, 1, 2, 2)]
    settings = optimizer.param_groups[0]
    trained = [Trained(group=0, optimizer=optimizer, settings=settings, dtype=torch.float32, shape=shape) for shape in shapes]
    book = capture_rules(trained)
    assert len(book.rules) == 1
    assert len(book.uses) == 4


def changed(*path: Any, value: Any) -> str:
    document = copy.deepcopy(json.loads(TEXT))
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


STEP = ("rules", 0, "later", 0, "steps", 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        (TEXT + " " * (1 << 20), "at most 1048576 are read"),
        (changed("version", value=2), "not a document of format 'farflung-optimizer', version 1"),
        (changed("settings", value=["momentum"]), "settings must be some of lr, momentum, weight_decay"),
        (changed("extra", value=1), "unknown field 'extra'"),
        (changed("uses", value=[[0, "float32", [3, 2], 7]]), "a rule must be a whole number of at most 0"),
        (changed("uses", value=[[0, "float32", [-3], 0]]), "a size must be a whole number"),
        (changed("uses", value=[[0, ["float32"], [3], 0]]), "a use must be"),
        (changed("rules", 0, "first", 0, "results", 0, value=10**400), "a result must be a place or a number"),
        (changed("rules", 0, "states", 0, value=["a/b", "float32", []]), "its name a plain word"),
        (changed("rules", 0, "states", 0, value=["step", "object", []]), "unknown kind 'object'"),
        (changed("rules", 0, "first", value=[]), "0 programs, 1 to 16 are allowed"),
        (changed(*STEP, "target", value="aten.system.default"), "is not on the allow-list"),
        (changed(*STEP, "target", value="farflung.input"), "an update can't have this operator"),
        (changed(*STEP, "target", value="aten.empty_like.default"), "an update can't have this operator"),
        (changed(*STEP, "target", value="aten.normal_.default"), "an update can't have this operator"),
        (changed(*STEP, "target", value="number.system"), "no such operator on numbers"),
        (changed(*STEP, "args", value=[{"l": 99}, 1]), "reads a place that no earlier step fills"),
        (changed(*STEP, "args", value=[{"s": "weight"}, 1]), "reads a place that no earlier step fills"),
        (changed(*STEP, "args", value=[1, {"l": 0}]), "first argument of an in-place operator must be a tensor"),
        (changed(*STEP, "args", value=[{"l": 2}, {"l": 0}]), "first argument of an in-place operator must be a tensor"),
        (changed(*STEP, "kwargs", value={"alpha": "x"}), "argument 'alpha' must be Scalar"),
        (changed(*STEP, "rng", value=0), "draws no random numbers"),
        (changed("rules", 0, "later", 0, "results", 0, value={"l": 2}), "is not the float32 that it must be"),
        (changed("rules", 0, "later", 0, "results", value=[]), "0 results for"),
        (changed("rules", 0, "later", 0, "guards", value=[[0, True]]), "no comparison that a guard can have"),
    ],
)
def test_documents_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        read_rules(text)


def test_a_number_of_the_run_is_no_size() -> None:
    document = json.loads(TEXT)
    document["rules"][0]["later"][0]["steps"][0] = {"target": "aten.reshape.default", "args": [{"l": 0}, [{"l": 2}]]}
    with pytest.raises(GraphError, match=r"argument 'shape' must be int\[\]"):
        read_rules(json.dumps(document))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"optimizer": {"name": "nadam"}}, "optimizer.name = 'nadam': the job lacks its rules"),
        ({"optimizer": {"state": "bf16"}}, "optimizer.name = 'sgd': the job lacks its rules"),
        ({"optimizer": {"groups": [{"match": "a", "name": "lion"}]}}, "the job lacks its rules"),
        ({"schedule": {"momentum": {"name": "linear"}}}, "the job lacks its rules"),
        (
            {"optimizer": {"rules": TEXT}, "schedule": {"momentum": {"name": "linear"}}},
            "rules take lr, the job's schedule sets",
        ),
    ],
)
def test_jobs_that_lack_something(document: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_optimizer(make_job(document))
    check_optimizer(make_job({"optimizer": {"name": "nadam", "rules": TEXT}}))
