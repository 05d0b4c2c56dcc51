"""The plan as JSON: versioned, strict, and checked before anything is built from it."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, TypeGuard

from farflung.errors import PlanError, VersionError
from farflung.plan.parts import PLAN_VERSION, CodecChoice, LinkPlan, PlanFields, Replica, Setting, Stage, SyncLayer, SyncPlan
from farflung.sync.reductions import Reduction

__all__ = ["plan_fields", "write_plan"]

_MAX_CHARACTERS = 64 << 20
_MAX_STAGES = 100_000
_PLAN = {"version", "graph", "planner", "schedule", "micro_batch_sizes", "stages", "links", "sync"}


def write_plan(plan: PlanFields) -> str:
    """The plan as JSON text. ``plan_fields`` reads its fields back."""
    body = {
        "version": plan.version,
        "graph": plan.graph_hash,
        "planner": plan.planner,
        "schedule": plan.schedule,
        "micro_batch_sizes": list(plan.micro_batch_sizes),
        "stages": [_stage_body(stage) for stage in plan.stages],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "activations": _codec(link.activations),
                "gradients": _codec(link.gradients),
            }
            for link in plan.links
        ],
        "sync": None if plan.sync is None else _sync_body(plan.sync),
    }
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def plan_fields(text: str | bytes) -> dict[str, Any]:
    """Read what ``write_plan`` wrote: the fields of the plan.

    Raises:
        VersionError: it was written by a version of farflung with another plan format.
        PlanError: the text is no plan; it says where and why.
    """
    if len(text) > _MAX_CHARACTERS:
        raise PlanError(f"a plan document may have {_MAX_CHARACTERS} characters at most, this has {len(text)}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the plan is not JSON: {error}; write it with farflung plan --json, or Plan.to_json") from None
    table = _table(body, "plan", _PLAN)
    if table["version"] != PLAN_VERSION:
        raise VersionError(
            f"this plan has format {table['version']!r}, this farflung reads {PLAN_VERSION}; plan again with this version"
        )
    stages = _list(table["stages"], "stages")
    links = _list(table["links"], "links")
    sizes = tuple(_count(size, "micro_batch_sizes", 1) for size in _list(table["micro_batch_sizes"], "micro_batch_sizes"))
    if not sizes:
        raise _fail("micro_batch_sizes", "the samples of at least one micro-batch", [])
    return {
        "graph_hash": _text(table["graph"], "graph"),
        "planner": _text(table["planner"], "planner"),
        "schedule": _text(table["schedule"], "schedule"),
        "micro_batch_sizes": sizes,
        "stages": tuple(_stage(i, entry) for i, entry in enumerate(stages)),
        "links": tuple(_link(i, entry) for i, entry in enumerate(links)),
        "sync": None if table["sync"] is None else _sync(table["sync"]),
    }


def _stage_body(stage: Stage) -> dict[str, object]:
    body: dict[str, object] = {
        "start": stage.start,
        "stop": stage.stop,
        "device": stage.device,
        "recompute": stage.recompute,
        "replicas": [{"device": r.device, "first": r.first, "end": r.end} for r in stage.replicas],
    }
    if stage.offload != "none":
        body["offload"] = stage.offload
    if stage.shard != "none":
        body["shard"] = stage.shard
    if stage.adds is not None:
        body["adds"] = {"by": stage.adds.by, "toward": list(stage.adds.toward), "turns": stage.adds.turns}
    return body


def _codec(choice: CodecChoice) -> dict[str, object]:
    body: dict[str, object] = {"name": choice.name, "params": dict(choice.params)}
    return body | {"memory": choice.memory} if choice.memory else body


def _fail(where: str, rule: str, value: object) -> PlanError:
    shown = repr(value)
    return PlanError(
        f"plan document, {where}: must be {rule}, got {shown[:80]}; write it with farflung plan --json, or Plan.to_json"
    )


def _table(value: object, where: str, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        found = sorted(value) if isinstance(value, dict) else value
        raise _fail(where, f"an object with the keys {', '.join(sorted(keys))}", found)
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list) or len(value) > _MAX_STAGES:
        raise _fail(where, f"a list of at most {_MAX_STAGES} entries", value)
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _fail(where, "text", value)
    return value


def _count(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _fail(where, f"a whole number of at least {least}", value)
    return value


def _stage(index: int, entry: object) -> Stage:
    where = f"stages[{index}]"
    extra = {"adds", "offload", "shard"} & entry.keys() if isinstance(entry, dict) else set()
    table = _table(entry, where, {"start", "stop", "device", "recompute", "replicas"} | extra)
    if not isinstance(table["recompute"], bool):
        raise _fail(f"{where}.recompute", "true or false", table["recompute"])
    if table.get("offload", "optimizer") != "optimizer":
        raise _fail(f"{where}.offload", "'optimizer', or left out", table["offload"])
    shard = table.get("shard", "none")
    if "shard" in extra and shard not in ("parameters", "tensor"):
        raise _fail(f"{where}.shard", "'parameters', 'tensor', or left out", shard)
    return Stage(
        index=index,
        start=_count(table["start"], f"{where}.start", 0),
        stop=_count(table["stop"], f"{where}.stop", 0),
        device=_text(table["device"], f"{where}.device"),
        recompute=table["recompute"],
        replicas=tuple(
            _replica(f"{where}.replicas[{place}]", item)
            for place, item in enumerate(_list(table["replicas"], f"{where}.replicas"))
        ),
        adds=_adds(f"{where}.adds", table["adds"]) if "adds" in extra else None,
        offload="optimizer" if "offload" in extra else "none",
        shard=shard,
    )


def _adds(where: str, entry: object) -> Reduction:
    table = _table(entry, where, {"by", "toward", "turns"})
    toward = tuple(_count(item, f"{where}.toward", -1) for item in _list(table["toward"], f"{where}.toward"))
    return Reduction(by=_text(table["by"], f"{where}.by"), toward=toward, turns=_count(table["turns"], f"{where}.turns", 1))


def _replica(where: str, entry: object) -> Replica:
    table = _table(entry, where, {"device", "first", "end"})
    return Replica(
        device=_text(table["device"], f"{where}.device"),
        first=_count(table["first"], f"{where}.first", 0),
        end=_count(table["end"], f"{where}.end", 1),
    )


def _link(index: int, entry: object) -> LinkPlan:
    where = f"links[{index}]"
    table = _table(entry, where, {"source", "target", "activations", "gradients"})
    return LinkPlan(
        source=_count(table["source"], f"{where}.source", 0),
        target=_count(table["target"], f"{where}.target", 0),
        activations=_choice(table["activations"], f"{where}.activations"),
        gradients=_choice(table["gradients"], f"{where}.gradients"),
    )


def _choice(entry: object, where: str) -> CodecChoice:
    extra = {"memory"} if isinstance(entry, dict) and "memory" in entry else set()
    table = _table(entry, where, {"name", "params"} | extra)
    params = table["params"]
    if not isinstance(params, dict):
        raise _fail(f"{where}.params", "an object", params)
    for key, value in params.items():
        if isinstance(value, bool) or not _is_scalar(value):
            raise _fail(f"{where}.params.{key}", "a finite number or text", value)
    memory = _text(table.get("memory", ""), f"{where}.memory")
    return CodecChoice(name=_text(table["name"], f"{where}.name"), params=tuple(params.items()), memory=memory)


def _sync_body(sync: SyncPlan) -> dict[str, object]:
    taken = {"local_steps": list(sync.local_steps)} if sync.local_steps else {}
    return taken | {
        "strategy": sync.strategy,
        "settings": {key: [list(item) for item in value] if isinstance(value, tuple) else value for key, value in sync.settings},
        "layers": [
            [{"parameters": list(x.parameters)} | {key: getattr(x, key) for key in _LAYER_SECONDS} for x in stage]
            for stage in sync.layers
        ],
    }


def _sync(entry: object) -> SyncPlan:
    extra = {"local_steps"} if isinstance(entry, dict) and "local_steps" in entry else set()
    table = _table(entry, "sync", {"strategy", "settings", "layers"} | extra)
    settings = table["settings"]
    if not isinstance(settings, dict):
        raise _fail("sync.settings", "an object", settings)
    layers = []
    for number, stage in enumerate(_list(table["layers"], "sync.layers")):
        where = f"sync.layers[{number}]"
        layers.append(tuple(_sync_layer(f"{where}[{i}]", item) for i, item in enumerate(_list(stage, where))))
    return SyncPlan(
        strategy=_text(table["strategy"], "sync.strategy"),
        settings=tuple((str(key), _setting(f"sync.settings.{key}", value)) for key, value in settings.items()),
        layers=tuple(layers),
        local_steps=tuple(
            _count(item, "sync.local_steps", 1) for item in _list(table.get("local_steps", []), "sync.local_steps")
        ),
    )


def _setting(where: str, value: object) -> Setting:
    if isinstance(value, list):
        return tuple(tuple(_count(x, where, 0) for x in _list(item, where)) for item in _list(value, where))
    if not _is_scalar(value):
        raise _fail(where, "a finite number, text, true, false or lists of numbers", value)
    return value


def _is_scalar(value: object) -> TypeGuard[float | str]:
    return isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))


#: The numbers of a layer.
_LAYER_SECONDS = ("bp_seconds", "comm_seconds", "latency_seconds")


def _sync_layer(where: str, entry: object) -> SyncLayer:
    given = entry.keys() & {"latency_seconds"} if isinstance(entry, dict) else set()
    table = {"latency_seconds": 0.0} | _table(entry, where, {"parameters", "bp_seconds", "comm_seconds"} | given)
    for key in _LAYER_SECONDS:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
            raise _fail(f"{where}.{key}", "seconds", value)
    return SyncLayer(
        parameters=tuple(_text(name, f"{where}.parameters") for name in _list(table["parameters"], f"{where}.parameters")),
        **{key: float(table[key]) for key in _LAYER_SECONDS},
    )
