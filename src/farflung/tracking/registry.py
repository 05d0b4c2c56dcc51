"""The trackers by name. All are plug-ins: those of farflung itself are named here, others by their packages' entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from importlib.util import find_spec

from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.registry import Registry
from farflung.tracking.base import MakeTracker

__all__ = ["FILE_TRACKERS", "TRACKERS", "check_installed", "check_names", "tracker_names"]

#: Trackers by name (``report.to``).
TRACKERS: Registry[MakeTracker] = Registry("tracker", "trackers")

_HOME = "farflung.integrations.trackers"
#: Name -> the library that the tracker needs, as it is imported, and its class.
_OWN = {
    "csv": ("csv", "csv_file:CsvTracker"),
    "mlflow": ("mlflow", "mlflow:MlflowTracker"),
    "tensorboard": ("tensorboard", "tensorboard:TensorBoardTracker"),
    "trackio": ("trackio", "trackio:TrackioTracker"),
    "wandb": ("wandb", "wandb:WandbTracker"),
}
for _name, (_, _where) in _OWN.items():
    TRACKERS.add(_name, EntryPoint(name=_name, value=f"{_HOME}.{_where}", group="farflung.trackers").load)

#: Trackers that write only into the run's folder: a broker lets every submitter use them.
FILE_TRACKERS = ("csv", "tensorboard")


def check_names(names: tuple[str, ...], what: str = "report.to") -> None:
    """Whether there are trackers called ``names``.

    Raises:
        InputError: there is none of that name; the text lists the known ones.
    """
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"{what}: unknown tracker {name!r}: {known_names(name, TRACKERS)}")


def check_installed(name: str, where: str) -> None:
    """Whether the library of the tracker ``name`` is installed, without importing it. ``where``: this machine, for the error.

    Raises:
        InputError: it is missing.
    """
    library = _OWN.get(name, ("", ""))[0]
    if library and find_spec(library) is None:
        raise InputError(f"the tracker {name!r} needs the package {library}, missing {where}: pip install {library}")


def tracker_names(text: str | None, what: str = "--trackers") -> tuple[str, ...]:
    """Return the trackers in ``text``, which separates them by commas.

    Raises:
        InputError: one is unknown.
    """
    names = tuple(name for part in (text or "").split(",") if (name := part.strip()))
    check_names(names, what)
    return names
