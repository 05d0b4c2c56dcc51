"""The page's table of what goes together, against the code: each cell is allowed, or refused with what to change."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from farflung.codecs import CODECS
from farflung.errors import InputError
from farflung.job.load import make_job
from farflung.job.spec import JobSpec
from farflung.plan.synchronization import check_fits
from farflung.sync import STRATEGIES, get_strategy

PAGE = Path(__file__).parents[3] / "docs" / "sync.md"
DENSE = {"identity", "fp16", "bf16", "int8", "int4"}
ROUGH = {"topk", "randomk", "sign", "int2", "lowrank"}
COLUMNS = [
    "strategy",
    "codecs",
    "`clip_norm`",
    'with `clip_by = "previous"`',
    "`sync.patience`",
    "`by_speed`",
    '`precision = "fp16"`',
]


def table() -> dict[str, dict[str, str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("| " + " | ".join(COLUMNS) + " |")
    found = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0].strip("`")] = dict(zip(COLUMNS[1:], cells[1:], strict=True))
    return found


TABLE = table()
CLIP = {"optimizer": {"clip_norm": 1.0}}
PREVIOUS = {"optimizer": {"clip_norm": 1.0, "clip_by": "previous"}}


def job(name: str, **more: Any) -> JobSpec:
    return make_job({"micro_batch_sizes": [1] * 4, "plan": {"replicas": 4}, "sync": {"strategy": name}} | more)


def refusal(call: Any) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


def test_every_strategy_has_its_row() -> None:
    assert set(TABLE) == set(STRATEGIES)


def codecs_of(cell: str) -> set[str]:
    return {"all": DENSE | ROUGH, "dense": DENSE, "none": {"identity"}}[cell]


@pytest.mark.parametrize("name", STRATEGIES)
def test_codecs(name: str) -> None:
    allowed = codecs_of(TABLE[name]["codecs"])
    for codec in DENSE | ROUGH:
        assert codec in CODECS
        if codec in allowed:
            assert get_strategy(name, codec=codec).traits.codec == codec
        else:
            assert re.search("set 'identity'", refusal(partial(get_strategy, name, codec=codec)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_clipping(name: str) -> None:
    for column, document in (("`clip_norm`", CLIP), ('with `clip_by = "previous"`', PREVIOUS)):
        made = job(name, **document)
        if TABLE[name][column] == "yes":
            check_fits(get_strategy(name), made)
        else:
            assert re.search("remove clip_norm", refusal(partial(check_fits, get_strategy(name), made)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_patience_and_speed(name: str) -> None:
    strategy = get_strategy(name, codec="identity")
    assert strategy.traits.adds_up == (TABLE[name]["`sync.patience`"] == "yes")
    paced = "by_speed" in {field.name for field in fields(strategy)}  # type: ignore[arg-type]
    assert paced == (TABLE[name]["`by_speed`"] == "yes")
    if not paced:
        assert "known are" in refusal(partial(get_strategy, name, by_speed=True))


@pytest.mark.parametrize("name", STRATEGIES)
def test_float16(name: str) -> None:
    made = job(name, precision="fp16")
    if TABLE[name]['`precision = "fp16"`'] == "yes":
        check_fits(get_strategy(name), made)
    else:
        text = refusal(partial(check_fits, get_strategy(name), made))
        assert text.startswith(f"precision = 'fp16': {get_strategy(name).traits.name} ")
        assert "; set strategy = 'diloco' or 'local_sgd', or precision = 'bf16'" in text


ONLY_EXACT: dict[str, tuple[dict[str, Any], str]] = {
    "on_nan": ({"on_nan": "skip"}, "set it to 'stop'"),
    "rollback": ({"on_nan": "rollback", "checkpoint": {"every": 1}}, "set it to 'stop'"),
    "virtual replicas": ({"virtual_replicas": 2}, "remove it"),
    "order": ({"order": "any"}, "remove order, or strategy"),
    "helpers": ({"plan": {"replicas": 4, "helpers": True}}, "remove [sync], or set plan.helpers = false"),
    "one replica": ({"plan": {"replicas": 1}}, "set it to 2 or more, or remove [sync]"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("document", "remedy"), ONLY_EXACT.values(), ids=ONLY_EXACT)
def test_what_goes_with_exact_sums_only(name: str, document: dict[str, Any], remedy: str) -> None:
    changed = dict(document)
    sync = {"strategy": name} | ({"order": changed.pop("order")} if "order" in changed else {})
    assert remedy in refusal(partial(job, name, **changed, sync=sync))
