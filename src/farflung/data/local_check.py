"""Whether the files that a job's ``data`` names exist on the submitting machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farflung.data.base import Place
from farflung.data.files import default_cache, resolve
from farflung.job.spec import DataSpec
from farflung.object_store import is_remote

__all__ = ["absent_data"]


def absent_data(data: DataSpec, bases: Sequence[Path]) -> str:
    """Return one line about the first path of ``data`` that lies below none of ``bases`` (empty: all paths exist).

    An absent path is no error: workers read the data, and the submitting machine need not have a copy.

    Raises:
        InputError: a path has braces around anything but ``stdlib``.
    """
    if data.kind == "caller":
        return ""
    tokenizer = "" if not data.tokenized or data.tokenizer in ("bytes", "chars") else data.tokenizer
    named = {"path": data.path, "eval_path": data.eval_path, "tokenizer": tokenizer}
    named |= {f"mixture[{index}].path": part.path for index, part in enumerate(data.mixture)}
    for key, path in named.items():
        local = bool(path) and not is_remote(path)
        places = [resolve(path, Place(base=base, cache=default_cache())) for base in bases] if local else []
        if places and not any(place.exists() for place in places):
            return (
                f"each worker that reads data needs data.{key} = {path!r}, and this machine has no {places[0]}: check the path, "
                "or start these workers with farflung join --data FOLDER"
            )
    return ""
