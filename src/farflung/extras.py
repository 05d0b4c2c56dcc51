"""Optional libraries: a feature that needs a missing one ends with one clear line."""

from __future__ import annotations

from importlib.util import find_spec

from farflung.errors import InputError

__all__ = ["has_web", "require_metrics", "require_torch", "require_web"]


def require_torch(purpose: str) -> None:
    """See that PyTorch is installed, without importing it. ``purpose`` begins the text of the error.

    Raises:
        InputError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise InputError(f"{purpose} needs PyTorch, which is not installed here: pip install 'farflung[torch]'")


def has_web() -> bool:
    """Whether the libraries of the dashboard are installed."""
    return find_spec("nicegui") is not None


def require_web() -> None:
    """See that the libraries of the dashboard are installed, without importing them.

    Raises:
        InputError: they are not installed.
    """
    if not has_web():
        raise InputError("the dashboard needs NiceGUI, which is not installed here: pip install 'farflung[web]'")


def require_metrics() -> None:
    """See that the library of Prometheus is installed, without importing it.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("prometheus_client") is None:
        raise InputError("--metrics needs prometheus_client, which is not installed here: pip install 'farflung[metrics]'")
