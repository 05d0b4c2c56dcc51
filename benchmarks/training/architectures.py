"""``architectures``: each architecture of a catalog, small: captured, trained in two stages, compared with a plain loop."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.training.architecture_catalog import CATALOG, Architecture
from benchmarks.training.coverage import CoverageSettings, try_model
from benchmarks.training.coverage_models import Draw

__all__ = ["ArchitectureSettings", "Architectures", "page", "try_architecture"]

_TARGET = 60
#: Families that the target names; each has at least one architecture.
_FAMILIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureSettings(Settings):
    """``limit``: how many architectures, evenly from all families (0: all)."""

    limit: int = bounded(0)
    stages: int = 2
    steps: int = 2
    micro_batches: int = 2


def try_architecture(entry: Architecture, settings: ArchitectureSettings) -> dict[str, Any]:
    """Capture and train one architecture; what came of it, as a table of values."""
    outcome = try_model(
        Draw(library="transformers", model_class=entry.model, choices={}, make=entry.make, batch=entry.batch),
        CoverageSettings(
            threads=settings.threads, stages=settings.stages, steps=settings.steps, micro_batches=settings.micro_batches
        ),
    )
    return {"family": entry.family, "model": entry.model, **asdict(outcome)}


class Architectures:
    """Trains every architecture of the catalog, and writes the table of docs/architectures.md."""

    name = "architectures"
    summary = "architectures of transformers: captured and trained in two stages like a plain loop"

    def settings(self, quick: bool) -> ArchitectureSettings:
        """Quick: one architecture of each family."""
        return ArchitectureSettings(quick=True, limit=_FAMILIES) if quick else ArchitectureSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Try each architecture.

        Raises:
            InputError: the settings of a job made from them are out of range.
        """
        import torch

        assert isinstance(settings, ArchitectureSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        entries = []
        try:
            for entry in chosen(settings.limit):
                entries.append(try_architecture(entry, settings))
                say(f"{entry.model}: {entries[-1]['result']} {entries[-1]['text']}".strip())
                gc.collect()
        finally:
            torch.set_num_threads(before)
        equal = [entry for entry in entries if entry["result"] == "equal"]
        families = {entry["family"] for entry in equal}
        enough = len(equal) >= _TARGET and len(families) == _FAMILIES
        check = Check(
            name="captured and bit-equal",
            target=f"{_TARGET} of {_FAMILIES} families",
            measured=f"{len(equal)} of {len(families)} families",
            passed=None if settings.quick else enough,
            note="; ".join(entry["model"] for entry in entries if entry["result"] != "equal"),
        )
        figures = {"models": entries, "versions": {name: version(name) for name in ("torch", "transformers")}}
        rows: list[list[object]] = [[family, sum(entry["family"] == family for entry in equal)] for family in sorted(families)]
        return Report(figures=figures, columns=("family", "equal"), rows=rows, checks=(check,))


def chosen(limit: int) -> Sequence[Architecture]:
    """``limit`` architectures of the catalog, evenly from all families (0: all)."""
    if not limit:
        return CATALOG
    families = list(dict.fromkeys(entry.family for entry in CATALOG))
    lists = [[entry for entry in CATALOG if entry.family == family] for family in families]
    found: list[Architecture] = []
    for turn in range(len(CATALOG)):
        found += [entries[turn] for entries in lists if turn < len(entries)]
    return found[:limit]


_HEAD = """# Supported architectures

farflung captures any module that [`torch.export` traces](models.md). This page lists the architectures of the transformers
library that a test captures in a small size. It trains each for two steps in two stages and compares losses, gradients and
weights with a plain loop, bit for bit. `python -m benchmarks architectures --json docs/results/architectures.json` and
`python scripts/architectures.py` write this page.

"""


def page(figures: dict[str, Any]) -> str:
    """The text of docs/architectures.md for the benchmark's figures."""
    versions, models = figures["versions"], figures["models"]
    equal = [entry for entry in models if entry["result"] == "equal"]
    text = (
        _HEAD + f"{len(equal)} of {len(models)} architectures are equal with transformers {versions['transformers']} and torch "
    )
    text += f"{versions['torch'].partition('+')[0]}.\n"
    for family in dict.fromkeys(entry["family"] for entry in models):
        names = [f"`{entry['model']}`" for entry in equal if entry["family"] == family]
        text += f"\n## {family}\n\n| class | operators |\n| --- | --- |\n"
        counts = {entry["model"]: entry["operators"] for entry in equal}
        text += "".join(f"| {name} | {counts[name.strip('`')]} |\n" for name in names)
    others = [entry for entry in models if entry["result"] != "equal"]
    if others:
        text += "\n## Others\n\n| class | family | result |\n| --- | --- | --- |\n"
        text += "".join(f"| `{entry['model']}` | {entry['family']} | {_reason(entry)} |\n" for entry in others)
    return text


def _reason(entry: dict[str, Any]) -> str:
    if entry["result"] == "different":
        return f"trains, and differs from the plain loop by rounding ({entry['text'].rpartition('largest ')[2]})"
    return " ".join(str(entry["text"]).split()).replace("|", "\\|")


def page_path() -> Path:
    """The page in this checkout."""
    return Path(__file__).parents[2] / "docs" / "architectures.md"
