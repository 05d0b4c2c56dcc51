"""Optional libraries: a feature that needs a missing one ends with one clear line."""

from __future__ import annotations

from importlib.util import find_spec

from farflung.errors import InputError

__all__ = ["require_torch"]


def require_torch(purpose: str) -> None:
    """See that PyTorch is installed, without importing it. ``purpose`` begins the text of the error.

    Raises:
        InputError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise InputError(f"{purpose} needs PyTorch, which is not installed here: pip install 'farflung[torch]'")
