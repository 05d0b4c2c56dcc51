"""The engines by name; asking for one is what imports its tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from farflung.engines.base import Engine
from farflung.registry import Registry

__all__ = ["ENGINES", "get_engine", "rank_engine"]

#: The engines of farflung: name -> module and class.
_BUILT_IN = {
    "torch": ("farflung.engines.torch.engine", "TorchEngine"),
    "reference": ("farflung.engines.reference.engine", "ReferenceEngine"),
    "reference64": ("farflung.engines.reference.engine", "WideEngine"),
    "shapes": ("farflung.engines.shapes.engine", "ShapeEngine"),
    "jax": ("farflung.engines.jax.engine", "JaxEngine"),
}

ENGINES: Registry[Engine] = Registry("engine", "engines")


def _add(name: str, module: str, kind: str) -> None:
    def load() -> Engine:
        engine: Engine = getattr(import_module(module), kind)()
        return engine

    ENGINES.add(name, load)


for _name, (_module, _kind) in _BUILT_IN.items():
    _add(_name, _module, _kind)


def get_engine(name: str) -> Engine:
    """The engine called ``name`` (``torch``, or a plug-in's).

    Raises:
        InputError: there is none; the text lists the known ones.
    """
    return ENGINES.get(name)


def rank_engine(rank: int, devices: Sequence[str], folder: str) -> Engine:
    """The engine of ``rank`` of a site, which has joined the other ranks. Sites compute with PyTorch only."""
    engine: Engine = import_module("farflung.engines.torch.ranks.engine").RankEngine(rank, devices, folder)
    return engine
