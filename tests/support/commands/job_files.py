"""The job that most tests train, a tiny GPT on bytes of text: as a document, and as the text of a job file."""

from __future__ import annotations

import json
from typing import Any

#: Text that each machine with Python has.
LIBRARY = {"path": "{stdlib}", "glob": "json/*.py"}


def job_document(**changes: Any) -> dict[str, Any]:
    """Return the job. ``changes``: top-level keys of the job file (tables are merged)."""
    document: dict[str, Any] = {
        "name": "tiny",
        "seed": 3,
        "steps": 4,
        "micro_batch_sizes": [3, 2],
        "model": {"recipe": "gpt", "args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2}},
        "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 16},
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "plan": {"planner": "equal_compute"},
    }
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return document


def job_text(**changes: Any) -> str:
    """Return ``job_document`` as TOML."""
    document = job_document(**changes)
    values = [f"{key} = {_toml(value)}" for key, value in document.items() if not isinstance(value, dict)]
    for name, table in document.items():
        if isinstance(table, dict):
            values += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join([*values, ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)  # for text, numbers and lists of these, TOML and JSON write the same
