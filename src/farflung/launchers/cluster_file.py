"""The cluster file: which provider starts which broker and workers. TOML in, a checked ``ClusterSpec`` out.

A cluster file is read like a job file: in strict mode, with one clear line for whatever is wrong. The settings of the chosen
provider check its table.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from farflung.errors import InputError
from farflung.job.explain import explain
from farflung.job.section import Section
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.registry import PROVIDERS

__all__ = ["load_cluster", "make_cluster"]

#: A cluster file is small; anything larger is refused before it is parsed.
_MOST_BYTES = 1 << 20


def load_cluster(path: Path) -> ClusterSpec:
    """Read and check the cluster file ``path``. The default of ``name`` is made from the name of the file.

    Raises:
        InputError: the file can't be read, or a key is unknown, missing or has a value that is not allowed.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"cluster file {path}: at most {_MOST_BYTES} bytes are read: is it a cluster file?")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"cluster file {path} does not exist: check the path (examples/clusters has files to copy)") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cluster file {path} can't be read: {reason}; check the path") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower())[:30].strip("-")
    return make_cluster({"name": name or "cluster", **document}, source=str(path))


def make_cluster(document: Mapping[str, Any], source: str = "cluster") -> ClusterSpec:
    """A checked cluster from nested mappings (keys as in a cluster file). ``source`` begins each error text.

    The table of the provider is checked with the provider's settings and is an attribute with the provider's name.

    Raises:
        InputError: a key is unknown, missing or has a value that is not allowed.
    """
    provider = document.get("provider", "ssh")
    if not isinstance(provider, str):
        raise InputError(f"{source}: provider = {provider!r}: must be a text in quotes")
    try:
        settings = PROVIDERS.get(provider).settings
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    kind = create_model("ClusterFile", __base__=ClusterSpec, **{provider: (settings, _default(settings))})  # type: ignore[call-overload]
    try:
        text = json.dumps(document)
        cluster: ClusterSpec = kind.model_validate_json(text, strict=True)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValidationError):
            raise InputError(f"{source}: {explain(error, kind)}") from None
        raise InputError(f"{source}: only numbers, texts, booleans, lists and tables are allowed: {error}") from None
    return cluster


def _default(settings: type[Section]) -> object:
    """The table where the file leaves it out: the defaults, unless a key has none."""
    return ... if any(field.is_required() for field in settings.model_fields.values()) else settings()
