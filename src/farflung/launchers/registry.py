"""The providers by name. Those of farflung are named here, others by their packages' entry points (``farflung.launchers``)."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from farflung.launchers.base import ProviderType
from farflung.registry import Registry

__all__ = ["PROVIDERS"]

#: Providers by name (``provider`` in a cluster file).
PROVIDERS: Registry[ProviderType] = Registry("provider", "launchers")

_OWN = {
    "compose": "compose:ComposeProvider",
    "kubernetes": "kubernetes:KubernetesProvider",
    "ray": "ray:RayProvider",
    "sky": "clouds.sky:SkyProvider",
    "slurm": "slurm:SlurmProvider",
    "ssh": "ssh:SshProvider",
}
for _name, _where in _OWN.items():
    PROVIDERS.add(_name, EntryPoint(name=_name, value=f"farflung.launchers.{_where}", group="farflung.launchers").load)
