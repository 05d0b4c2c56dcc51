"""Documents of run folders, with errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from farflung.errors import DataError, FarflungError

__all__ = ["parsed"]

T = TypeVar("T")


def parsed(path: Path, body: Mapping[str, Any] | None, parse: Callable[[str], T]) -> T:
    """Parse ``body``, which is part of the file ``path``, or the whole file (``None``).

    Raises:
        DataError: the file can't be read, or holds something else.
    """
    try:
        return parse(path.read_text(encoding="utf-8") if body is None else json.dumps(body))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    except FarflungError as error:
        raise DataError(f"{path}: {error}") from None
