"""Optional libraries: a feature that needs a missing one ends with one clear line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from farflung.errors import InputError

__all__ = [
    "ENGINE_LIBRARIES",
    "EngineLibrary",
    "has_web",
    "installed_engines",
    "require_engine",
    "require_metrics",
    "require_serve",
    "require_sql",
    "require_torch",
    "require_upnp",
    "require_web",
    "wants_traces",
]

_TRACE_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLibrary:
    """The tensor library of an engine: its ``module``, and its ``title`` for people.

    ``plugins``: a package that is there if the library may reach accelerators (empty: not known without an import).
    """

    module: str
    title: str
    plugins: str = ""

    @property
    def may_accelerate(self) -> bool:
        """Whether the package ``plugins`` is installed."""
        return bool(self.plugins) and find_spec(self.plugins) is not None


#: The libraries of the engines that train, by the engine's name, which is also the name of its extra. ``--engine auto`` prefers
#: the first one.
ENGINE_LIBRARIES = {
    "torch": EngineLibrary(module="torch", title="PyTorch"),
    "jax": EngineLibrary(module="jax", title="JAX", plugins="jax_plugins"),
}


def installed_engines() -> tuple[str, ...]:
    """Return the engines of ``ENGINE_LIBRARIES`` whose library is installed; nothing is imported.

    Raises:
        InputError: there is none.
    """
    found = tuple(name for name, library in ENGINE_LIBRARIES.items() if find_spec(library.module) is not None)
    if not found:
        titles = " or ".join(library.title for library in ENGINE_LIBRARIES.values())
        remedies = " or ".join(f"pip install 'farflung[{name}]'" for name in ENGINE_LIBRARIES)
        raise InputError(f"a worker needs {titles}, which is not installed here: {remedies}")
    return found


def require_engine(name: str) -> None:
    """See that the library of the engine ``name`` (``auto``: of any engine) is installed, without importing it.

    Raises:
        InputError: it is not installed.
    """
    library = ENGINE_LIBRARIES.get(name)
    if name == "auto":
        installed_engines()
    elif library is not None and find_spec(library.module) is None:
        raise InputError(
            f"--engine {name} needs {library.title}, which is not installed here: pip install 'farflung[{name}]', "
            "or use another engine"
        )


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


def require_serve() -> None:
    """See that the libraries of the HTTP server are installed, without importing them.

    Raises:
        InputError: they are not installed.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"farflung serve needs {missing[0]}, which is not installed here: pip install 'farflung[serve]'")


def require_metrics() -> None:
    """See that the library of Prometheus is installed, without importing it.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("prometheus_client") is None:
        raise InputError("--metrics needs prometheus_client, which is not installed here: pip install 'farflung[metrics]'")


def wants_traces(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the ``environment`` asks for traces over OTLP."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(environment.get(name) for name in _TRACE_ENDPOINTS)


def require_sql() -> None:
    """See that SQLAlchemy is installed, without importing it.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("sqlalchemy") is None:
        raise InputError("--records needs SQLAlchemy, which is not installed here: pip install 'farflung[sql]'")


def require_upnp(purpose: str) -> None:
    """See that the client of UPnP is installed, without importing it. ``purpose`` begins the text of the error.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("async_upnp_client") is None:
        raise InputError(f"{purpose} needs async-upnp-client, which is not installed here: pip install 'farflung[upnp]'")
