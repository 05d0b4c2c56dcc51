"""A checked cluster: the keys of its broker, its workers and its provider."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

from farflung.job.section import Section
from farflung.launchers.member_options import BrokerOptions, JoinOptions, Label, Variables, duration

__all__ = ["BrokerSpec", "ClusterSpec", "WorkersSpec", "settings_of"]

SettingsKind = TypeVar("SettingsKind", bound=Section)


class BrokerSpec(BrokerOptions):
    """The broker. Further keys are the options of `farflung broker`, with `_` in place of `-`."""

    #: How long tickets of this cluster are valid.
    valid: duration = "30 d"
    #: Variables of the broker's environment.
    environment: Variables = {}


class WorkersSpec(JoinOptions):
    """The workers. Further keys are the options of `farflung join`, with `_` in place of `-`."""

    #: The number of workers. Without a value: one for each place that the provider's table names.
    count: Annotated[int, Field(ge=0, le=100_000)] | None = None
    #: Variables of the workers' environment.
    environment: Variables = {}


class ClusterSpec(Section):
    """A cluster: the keys outside of all tables."""

    #: The cluster's name. Names of its workers begin with it.
    name: Label
    #: What starts the processes. The table with the same name has its settings.
    provider: str = "ssh"
    broker: BrokerSpec = BrokerSpec()
    workers: WorkersSpec = WorkersSpec()

    def worker_name(self, place: str) -> str:
        """Return the name of the worker at ``place``."""
        return f"{self.name}-{place}"


def settings_of(cluster: ClusterSpec, kind: type[SettingsKind]) -> SettingsKind:
    """Return the checked table of the provider of ``cluster``, which is of the type ``kind``."""
    settings = getattr(cluster, cluster.provider)
    assert isinstance(settings, kind)
    return settings
