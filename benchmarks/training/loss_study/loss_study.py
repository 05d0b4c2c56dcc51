"""``loss-study``: final loss against bytes under every way of compressing, on text and images, from scratch and fine-tuned.

A byte-level GPT (trained on the validation part of WikiText-2, judged on its test part; fine-tuned from a model that was trained
on Tiny Shakespeare here) and a narrow ResNet-18 (CIFAR-10 at 16 x 16 pixels; fine-tuned from one that was trained here on the
other half of the pictures). As a pipeline of four stages whose values are compressed, and as two replicas whose gradients are.
All variants of a seed take the same steps on the same samples from the same weights. Bytes are those of payload sections. Partial
results are written after each run, so a study that is stopped still says something.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.training.loss_study.settings import LossStudySettings
from farflung.clock import MonotonicClock
from farflung.errors import InputError
from farflung.job.load import make_job
from farflung.job.spec import CodecSpec
from farflung.plan import CodecChoice
from farflung.plan.codec_choice.compression import slow_choices
from farflung.plan.codec_choice.exchange_codec import sync_settings

__all__ = ["VARIANTS", "LossStudy", "auto_variant", "summary"]

SIGN = "quantized:bits=1,block=1024,rotate=true"
SPARSE = "topk:ratio=33,values=int4"

#: (way, phase) -> variant -> settings of ``Values`` or ``Gradients``; those of ``auto`` are what plans choose (``auto_variant``).
#: ``adatopk`` is the nominal ratio: equation (7) gives each cut its own, from its bytes and from ``LINKS``.
VARIANTS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("pipeline", "scratch"): {
        "dense": {},
        "auto": {},
        "8 bits": {"forward": "int8", "backward": "int8"},
        "4 bits": {"forward": "int4", "backward": "int4"},
        "2 bits": {"forward": "int2", "backward": "int2"},
        "top-k": {"forward": "topk:ratio=5,values=float16", "backward": "topk:ratio=5,values=float16"},
        "top-k, one cut": {"by_link": ("identity", "topk:ratio=5,values=float16", "identity")},
        "AdaTopK": {"adatopk": 8.0, "values": "float16"},
        "low rank": {"forward": "lowrank:rank=1", "backward": "lowrank:rank=1"},
    },
    ("pipeline", "fine-tuning"): {
        "dense": {},
        "auto": {},
        "1 bit, memory": {"forward": SIGN, "backward": SIGN, "difference": True, "feedback": True},
        "8 bits": {"forward": "int8", "backward": "int8"},
        "4 bits": {"forward": "int4", "backward": "int4"},
        "2 bits": {"forward": "int2", "backward": "int2"},
        "1 bit": {"forward": SIGN, "backward": SIGN},
        "top-k": {"forward": "topk:ratio=15,values=int8", "backward": "topk:ratio=15,values=int8"},
        "top-k, memory": {"forward": "topk:ratio=15,values=int8", "backward": "topk:ratio=15,values=int8", "difference": True},
        "top-k, one cut": {"by_link": ("identity", "topk:ratio=15,values=int8", "identity")},
        "top-k, one cut, memory": {"by_link": ("identity", "topk:ratio=15,values=int8", "identity"), "difference": True},
        "AdaTopK": {"adatopk": 30.0, "values": "int8"},
        "AdaTopK, memory": {"adatopk": 30.0, "values": "int8", "difference": True},
        "low rank": {"forward": "lowrank:rank=1", "backward": "lowrank:rank=1"},
    },
    ("replicas", "scratch"): {
        "dense": {},
        "auto": {},
        "top-k": {"codec": SPARSE},
        "top-k, memory": {"codec": SPARSE, "memory": "error_feedback"},
        "8 bits": {"codec": "int8"},
        "4 bits": {"codec": "int4"},
        "2 bits": {"codec": "int2"},
        "2 bits, memory": {"codec": "int2", "memory": "error_feedback"},
        "1 bit, memory": {"codec": "sign", "memory": "error_feedback"},
        "low rank, memory": {"codec": "lowrank:rank=1", "memory": "error_feedback"},
    },
}
VARIANTS["replicas", "fine-tuning"] = VARIANTS["replicas", "scratch"]
#: Another model each, so beside the dense one and not in the race with codecs: dims of each cut's waist as a share of the width.
VARIANTS["waist", "scratch"] = {
    "dense": {},
    **{f"{kind} 1/{share}": {"share": share, "learned": kind == "learned"} for share in (4, 8) for kind in ("learned", "random")},
}
#: Target shares of the bytes.
_SHARES = {
    ("pipeline", "scratch"): 8.0,
    ("pipeline", "fine-tuning"): 30.0,
    ("replicas", "scratch"): 100.0,
    ("replicas", "fine-tuning"): 100.0,
}
_WITHIN, _BEATEN = 0.02, 0.01
_MEMBERS = 2


class LossStudy:
    """Loss and bytes of every variant, mean over seeds, and whether ``auto`` is as good as it shall be."""

    name = "loss-study"
    summary = "final loss against bytes: every codec with and without memory, text and images, pipelines and replicas"

    def settings(self, quick: bool) -> LossStudySettings:
        """Quick: some steps of tiny models on made-up samples, one seed."""
        if quick:
            return LossStudySettings(
                quick=True,
                width=16,
                sequence=8,
                rows=4,
                steps=2,
                first_steps=1,
                tune_steps=2,
                again=8,
                image_width=4,
                image_rows=4,
                seeds=1,
                only=("dense", "auto"),
            )
        return LossStudySettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train all variants.

        Raises:
            InputError: a file is missing, or a variant unknown.
        """
        import torch

        from benchmarks.training.loss_study.tasks import Study

        assert isinstance(settings, LossStudySettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        clock = MonotonicClock()
        end = clock.now() + 60.0 * settings.minutes
        rows, others = _kept(settings)
        try:
            for number in range(settings.seeds):
                seed = settings.seed + number
                for model in settings.models:
                    study: Study | None = None
                    for case in _cases(settings):
                        row = {"model": model, **case, "seed": seed}
                        if any(row.items() <= done.items() for done in rows):
                            continue
                        if clock.now() > end:
                            return _report(settings, rows)
                        study = study or Study(settings, model, seed)
                        how = json.loads(case["how"])
                        row |= study.run(case["way"], case["phase"], how, _MEMBERS)
                        rows = [done for done in rows if _place(done) != _place(row)] + [row]
                        say(" ".join(map(str, _place(row))) + f": {row['loss']:.4f} at 1/{row['ratio']:.1f}")
                        if settings.partial:
                            Path(settings.partial).write_text(json.dumps(rows + others, indent=1), encoding="utf-8")
        finally:
            torch.set_num_threads(before)
        return _report(settings, rows)


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("model", "way", "phase", "variant", "seed"))


def _cases(settings: LossStudySettings) -> list[dict[str, str]]:
    """Way, phase, variant, and its settings as JSON."""
    found = []
    ways = [*dict.fromkeys(way for way, _ in VARIANTS)]
    for way in settings.ways:
        if way not in ways:
            raise InputError(f"unknown way {way!r}: known are {', '.join(ways)}")
    for (way, phase), variants in VARIANTS.items():
        if way not in settings.ways:
            continue
        for variant in _chosen(settings, variants):
            how = auto_variant(way, phase) if variant == "auto" else variants[variant]
            found.append({"way": way, "phase": phase, "variant": variant, "how": json.dumps(how, sort_keys=True)})
    return found


def _kept(settings: LossStudySettings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What an earlier study has left in ``partial``: runs that are not made again, and those of other models and variants.

    Raises:
        InputError: the file holds something else.
    """
    path = Path(settings.partial)
    if not settings.partial or not path.exists():
        return [], []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        found = {_place(row): row for row in rows}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"partial: {path} holds no rows of a study; name another file, or remove it") from None
    known = {_place({"model": model, "seed": 0, **case})[:4] for model in settings.models for case in _cases(settings)}
    return [row for place, row in found.items() if place[:4] in known], [
        row for place, row in found.items() if place[:4] not in known
    ]


def auto_variant(way: str, phase: str) -> dict[str, Any]:
    """What ``codec = "auto"`` picks for links on which nothing but bytes counts, with memory of samples in fine-tuning."""
    if way == "replicas":
        sync = {"strategy": "ssgd", "settings": {"codec": "auto"}}
        chosen = sync_settings(make_job({"plan": {"replicas": _MEMBERS}, "codec": {"phase": phase}, "sync": sync}))
        return {"codec": chosen["codec"], "memory": chosen.get("memory", "none")}
    spec = CodecSpec(name="auto", phase=phase, memory="difference" if phase == "fine-tuning" else "none")  # type: ignore[arg-type]
    there, back = slow_choices(spec)
    return {"forward": _written(there), "backward": _written(back), "difference": there.memory == "difference"}


def _written(choice: CodecChoice) -> str:
    """As ``codecs.read_codec`` takes it."""
    return ":".join([choice.name, ",".join(f"{key}={value}" for key, value in choice.params)]).rstrip(":")


def _chosen(settings: LossStudySettings, variants: Mapping[str, Any]) -> list[str]:
    if not settings.only:
        return list(variants)
    known = {name for found in VARIANTS.values() for name in found}
    for name in settings.only:
        if name not in known:
            raise InputError(f"unknown variant {name!r}: known are {', '.join(sorted(known))}")
    return [name for name in variants if name in settings.only]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds for which all variants of a case have run; ``gap``: relative to the dense loss of the same seeds."""
    found = []
    for case in dict.fromkeys((row["model"], row["way"], row["phase"]) for row in rows):
        of_case = [row for row in rows if (row["model"], row["way"], row["phase"]) == case]
        names = list(dict.fromkeys(row["variant"] for row in of_case))
        seeds = [
            seed
            for seed in sorted({row["seed"] for row in of_case})
            if len([row for row in of_case if row["seed"] == seed]) == len(names)
        ]
        dense = {row["seed"]: row["loss"] for row in of_case if row["variant"] == "dense"}
        for name in names:
            own = [row for row in of_case if row["variant"] == name and row["seed"] in seeds]
            if own:
                gaps = [row["loss"] / dense[row["seed"]] - 1.0 for row in own]
                found.append(
                    {
                        "model": case[0],
                        "way": case[1],
                        "phase": case[2],
                        "variant": name,
                        "loss": mean(row["loss"] for row in own),
                        "gap": mean(gaps),
                        "gaps": gaps,
                        "ratio": mean(row["ratio"] for row in own),
                        "seeds": len(own),
                    }
                )
    return found


def _report(settings: LossStudySettings, rows: Sequence[Mapping[str, Any]]) -> Report:
    found = summary(rows)
    if settings.plot:
        from benchmarks.training.loss_study.plot import draw

        draw(found, Path(settings.plot))
    columns = ("model", "way", "phase", "variant", "bytes", "loss", "gap", "seeds")
    table = [
        (
            row["model"],
            row["way"],
            row["phase"],
            row["variant"],
            f"1/{row['ratio']:.1f}",
            row["loss"],
            f"{row['gap']:+.1%}",
            row["seeds"],
        )
        for row in found
    ]
    return Report(figures={"means": found, "runs": list(rows)}, columns=columns, rows=table, checks=_checks(settings, found))


def _checks(settings: LossStudySettings, found: Sequence[Mapping[str, Any]]) -> list[Check]:
    checks = []
    for row in found:
        if row["variant"] != "auto":
            continue
        case = f"{row['model']}, {row['way']}, {row['phase']}"
        share = _SHARES[row["way"], row["phase"]]
        good = row["gap"] <= _WITHIN and row["ratio"] >= share
        checks.append(
            Check(
                name=f"{case}: auto against dense",
                target=f"within 2 % at 1/{share:.0f} of the bytes",
                measured=f"{row['gap']:+.1%} at 1/{row['ratio']:.1f}",
                passed=None if settings.quick else good,
            )
        )
        same = [other for other in found if all(other[key] == row[key] for key in ("model", "way", "phase"))]
        rivals = [other for other in same if other["variant"] != "auto" and other["ratio"] >= 0.97 * row["ratio"]]
        best = min(rivals, key=lambda other: other["loss"], default=row)
        checks.append(
            Check(
                name=f"{case}: auto against others of as few bytes",
                target="not beaten by more than 1 %",
                measured=f"{row['loss'] / best['loss'] - 1.0:+.1%} against {best['variant']}",
                passed=None if settings.quick else row["loss"] <= (1.0 + _BEATEN) * best["loss"],
            )
        )
    return checks
