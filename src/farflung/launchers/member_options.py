"""Options of ``farflung broker`` and ``farflung join`` as keys of a cluster file. A test compares them with the commands."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from farflung.errors import InputError
from farflung.job.section import Section
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Quantity, Seconds

__all__ = ["SLOT", "BrokerOptions", "JoinOptions", "Label", "Variables", "duration", "matching"]

#: Stands for the number of a worker on its machine, from 0.
SLOT = "{slot}"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _unit(kind: type[Quantity]) -> AfterValidator:
    """Check that a text is a quantity of this kind with a unit, and leave it as it is written."""

    def check(text: str) -> str:
        try:
            kind.typed(text)
        except InputError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
        return text

    return AfterValidator(check)


def matching(pattern: str, rule: str) -> AfterValidator:
    """Check that a whole text matches ``pattern``. ``rule`` says in words what is allowed."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise PydanticCustomError("text", "must be {rule}", {"rule": rule})
        return text

    return AfterValidator(check)


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if _VARIABLE.fullmatch(name) is None:
            raise PydanticCustomError("variable", "{name} is no name of a variable: write NAME = 'text'", {"name": name})
    return values


_LABEL = "1 to 30 small letters, digits or '-', with no '-' at the ends"
#: Names of clusters and hosts: what Kubernetes, Slurm, clouds and certificates all accept.
Label = Annotated[
    str, matching(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", "1 to 30 small letters, digits or '-', with no '-' at the ends")
]
#: Variables of a process's environment.
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
#: A duration as text.
duration = Annotated[str, _unit(Seconds)]
_Size = Annotated[str, _unit(Bytes)]
_Rate = Annotated[str, _unit(BytesPerSecond)]
_Speed = Annotated[str, _unit(FlopsPerSecond)]


def _words(values: Section, kind: type[Section], slot: int = 0) -> list[str]:
    """Return the keys of ``kind`` in ``values`` as words of a command line."""
    found: list[str] = []
    for key in kind.model_fields:
        value, option = getattr(values, key), f"--{key.replace('_', '-')}"
        if value is True:
            found.append(option)
        elif value is not None and value is not False:
            found += [option, str(value).replace(SLOT, str(slot))]
    return found


class BrokerOptions(Section):
    """Options of `farflung broker`."""

    #: Address on which the broker listens (`HOST:PORT`).
    listen: str | None = None
    #: Host name or IP address of the broker for workers and clients. Without a value: detected.
    advertise: str | None = None
    #: Limit of the disk space of one run.
    run_limit: _Size | None = None
    #: Limit of the disk space of all runs that share a ticket.
    ticket_limit: _Size | None = None
    #: Limit of the runs of one ticket that wait for workers.
    queue_limit: Annotated[int, Field(ge=1)] | None = None
    #: Address of the dashboard (`HOST:PORT`).
    web: str | None = None
    #: Start no dashboard.
    no_web: bool = False
    #: Share all records with other brokers: `@FILE` with the URL of a database, or the URL.
    records: str | None = None
    #: Copy checkpoints to an object store.
    mirror: str | None = None
    #: Serve metrics for Prometheus at this address (`HOST:PORT`).
    metrics: str | None = None
    #: Experiment trackers that submitters may use, separated by commas.
    trackers: str | None = None
    #: Log details for experts.
    verbose: bool = False

    def words(self) -> list[str]:
        """Return the options as words of a command line."""
        return _words(self, BrokerOptions)


class JoinOptions(Section):
    """Options of `farflung join`."""

    #: What computes: `auto` (an installed engine), or the name of one.
    engine: str | None = None
    #: `auto`, `cpu`, `cuda`, `cuda:N`, `mps` or `xpu`. `{slot}` is the number of the worker on its machine, from 0.
    device: str | None = None
    #: Devices that join as one worker: `all`, or names separated by commas.
    devices: str | None = None
    #: Memory for training.
    memory: _Size | None = None
    #: Disk space for models that do not fit into memory.
    disk: _Size | None = None
    #: Folder of that disk space. Without a value: of the worker's files.
    disk_folder: str | None = None
    #: Peak speed of the device by its datasheet.
    peak: _Speed | None = None
    #: Address to listen on for other workers (`HOST:PORT`).
    listen: str | None = None
    #: Host name or IP address of the worker for other workers. Without a value: detected.
    advertise: str | None = None
    #: Ask the router to forward a port to the worker (UPnP or PCP).
    map_port: bool = False
    #: Folder that jobs may read.
    data: str | None = None
    #: How long to retry when the broker is unreachable.
    retry: duration | None = None
    #: Let jobs read every file that the worker's user can read.
    any_path: bool = False
    #: Working hours, such as `"22:00-07:00"`.
    hours: str | None = None
    #: Limit of the upload rate.
    bandwidth: _Rate | None = None
    #: Where the machines are, for planners and pages.
    region: str | None = None
    #: Take part only in runs of this kind.
    only: Literal["training", "serving"] | None = None
    #: Accept no connections from other workers.
    no_listen: bool = False
    #: The workers may leave at any time.
    unreliable: bool = False
    #: Do not relay traffic between other workers.
    no_relay: bool = False
    #: `auto`, `required` or `off`.
    isolation: Literal["auto", "required", "off"] | None = None
    #: Leave when this cloud announces the end of a spot machine.
    spot_notices: Literal["aws", "azure", "gcp"] | None = None
    #: Serve metrics for Prometheus at this address (`HOST:PORT`).
    metrics: str | None = None
    #: Log details for experts.
    verbose: bool = False

    def words(self, slot: int = 0) -> list[str]:
        """Return the options as words of a command line. ``slot``: the number of the worker on its machine."""
        return _words(self, JoinOptions, slot)

    def over(self, defaults: JoinOptions) -> JoinOptions:
        """Return these options, and those of ``defaults`` for the keys that are left out here."""
        chosen = {key: self if key in self.model_fields_set else defaults for key in JoinOptions.model_fields}
        return JoinOptions(**{key: getattr(source, key) for key, source in chosen.items()})
