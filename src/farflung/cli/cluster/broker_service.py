"""``farflung broker --service``: a broker that starts with the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farflung.broker.replication.folder_copy import RECORDS_URL
from farflung.cli.cluster.systemd_units import broker_unit_text, write_unit
from farflung.cli.options import address, host
from farflung.errors import InputError
from farflung.security import split_address
from farflung.security.files import make_private_folder, write_private
from farflung.transports.addresses import reachable_host

__all__ = ["broker_service"]


def broker_service(given: Mapping[str, str | None], folder: Path, *, user: bool) -> list[str]:
    """Write the unit of a broker with its ``folder`` and the options ``given`` (an empty value: a flag without a value).

    Returns what to print, line by line.

    Raises:
        InputError: the port is not fixed, an option is wrong, the unit can't be written, or there is no systemd.
    """
    listen, advertise = str(given["--listen"]), host(given["--advertise"], "--advertise")
    if listen.endswith(":0"):
        raise InputError(f"--listen {listen}: a service needs a fixed port, which workers find again after a restart, e.g. 7070")
    port = split_address(address(listen, "--listen"))[1]
    place = folder.absolute()
    make_private_folder(place)
    words = ["--home", str(place)]
    for option, value in {**given, "--records": _records(given.get("--records"), place)}.items():
        words += [] if value is None else [option, *([value] if value else [])]
    mirror = given.get("--mirror") or ""
    copies = [Path(mirror).absolute()] if mirror and "://" not in mirror else []
    lines = write_unit("broker", broker_unit_text(words, place, user=user, writable=copies), user=user)
    records = given.get("--records") or "@"
    if not records.startswith("@"):
        write_private(place / RECORDS_URL, records.encode())
    reached = f"{advertise or reachable_host(listen.rpartition(':')[0])}:{port}"
    issue = f"farflung ticket issue --address {reached} --home {place}"
    return [*lines, f"a ticket to join (after the start):  {issue}", f"a ticket to submit:  {issue} --scope submit"]


def _records(given: str | None, place: Path) -> str | None:
    """Return the option that names the file with the database's URL: everybody can read units, and a URL may have a password."""
    if given is None:
        return None
    if given.startswith("@"):
        return f"@{Path(given[1:]).absolute()}"
    return f"@{place / RECORDS_URL}"
