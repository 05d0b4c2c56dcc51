"""Units of systemd, which start a worker or a broker with the machine, and again after a failure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from farflung.cli.home import home, members_folder
from farflung.errors import InputError
from farflung.security.files import make_private_folder, write_private

__all__ = ["broker_unit_text", "keep_join_ticket", "unit_text", "write_unit"]

#: Seconds that a worker has to hand over when the service is stopped: a step may take long.
_STOP_SECONDS = 300
#: What no service needs. Services of a user can have these, too. Sources: systemd.exec(5), capabilities(7).
_ALWAYS = (
    "NoNewPrivileges=yes",
    "UMask=0077",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap",
    "SystemCallErrorNumber=EPERM",
    "KeyringMode=private",
)
#: What services of the machine can have besides. Only the writable folders can be written.
_OF_MACHINE = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
)
#: A worker makes namespaces for the processes of jobs, and may read a data folder of another user. It uses devices.
_OF_WORKER = ("RestrictNamespaces=user net ipc pid",)
_OF_MACHINE_WORKER = ("CapabilityBoundingSet=CAP_DAC_READ_SEARCH",)
_OF_BROKER = ("RestrictNamespaces=yes",)
_OF_MACHINE_BROKER = ("CapabilityBoundingSet=CAP_NET_BIND_SERVICE", "PrivateDevices=yes", "ProtectClock=yes")


def keep_join_ticket(name: str, ticket: str) -> Path:
    """Write ``ticket`` to a file that only this user can read: everybody can read units."""
    make_private_folder(members_folder())
    path = members_folder() / f"{name}.ticket"
    write_private(path, ticket.encode())
    return path


def unit_text(name: str, arguments: Sequence[str], folder: Path, *, user: bool, writable: Sequence[Path] = ()) -> str:
    """Return the unit of the worker ``name``; ``arguments`` are those of ``farflung join``, ``folder`` is where it runs.

    The worker may write the folders ``writable``, and farflung's home.
    """
    service = ("Restart=on-failure", "RestartSec=10", "KillMode=mixed", f"TimeoutStopSec={_STOP_SECONDS}")
    limits = (*_OF_WORKER, *(() if user else (*_OF_MACHINE_WORKER, *_files(writable))))
    return _unit(f"farflung worker {name}", ["join", *arguments], folder, (*service, *_ALWAYS, *limits), user=user)


def broker_unit_text(arguments: Sequence[str], folder: Path, *, user: bool, writable: Sequence[Path] = ()) -> str:
    """Return the unit of a broker; ``arguments`` are those of ``farflung broker``, ``folder`` is the broker's.

    The broker may write ``folder``, the folders ``writable``, and farflung's home.

    A broker that is asked to end says goodbye: its workers leave and its runs fail. One that is killed is awaited by its workers,
    and its runs continue when it is back. A reboot must be the latter, so systemd stops this service with SIGKILL.
    """
    service = ("Restart=always", "RestartSec=5", "KillMode=mixed", "KillSignal=SIGKILL", "SuccessExitStatus=SIGKILL")
    limits = (*_OF_BROKER, *(() if user else (*_OF_MACHINE_BROKER, *_files([folder, *writable]))))
    return _unit("farflung broker", ["broker", *arguments], folder, (*service, *_ALWAYS, *limits), user=user)


def _files(writable: Sequence[Path]) -> list[str]:
    """Return what keeps a service of the machine from writing outside of ``writable`` and farflung's home."""
    return [*_OF_MACHINE, *(f"ReadWritePaths={_quote(f'-{path}')}" for path in dict.fromkeys([home(), *writable]))]


def _unit(description: str, arguments: Sequence[str], folder: Path, service: Sequence[str], *, user: bool) -> str:
    command = " ".join(_quote(word) for word in (sys.executable, "-m", "farflung", *arguments))
    paths = {"FARFLUNG_HOME": str(home()), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environment = [f"Environment={_quote(f'{key}={value}')}" for key, value in paths.items() if value]
    lines = [
        *("[Unit]", f"Description={description}", "Wants=network-online.target", "After=network-online.target"),
        *("StartLimitIntervalSec=0", "", "[Service]", "Type=exec", f"ExecStart={command}", *environment),
        f"WorkingDirectory={str(folder).replace('%', '%%')}",
        *service,
        *("", "[Install]", f"WantedBy={'default' if user else 'multi-user'}.target"),
    ]
    return "\n".join(lines) + "\n"


def write_unit(name: str, text: str, *, user: bool) -> list[str]:
    """Write the unit to the folder of systemd. Return lines for the user.

    Raises:
        InputError: it can't be written, or there is no systemd.
    """
    if shutil.which("systemctl") is None:
        raise InputError(
            "--service needs systemd, and this machine has no systemctl: "
            "let the machine's own service manager run the command without --service"
        )
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    place = config / "systemd" / "user" if user else Path("/etc/systemd/system")
    path = place / f"farflung-{name}.service"
    try:
        place.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; run it as root, or with --user for a service of your own"
        ) from None
    control = f"systemctl{' --user' if user else ''}"
    lines = [f"wrote {path}", f"start it:   {control} daemon-reload && {control} enable --now {path.stem}"]
    lines += [f"its log:    journalctl{' --user' if user else ''} -u {path.stem} -f", f"stop it:    {control} stop {path.stem}"]
    lines += [f"remove it:  {control} disable --now {path.stem} && rm {path}"]
    linger = "start it with the machine, and let it run while you are not logged in:  loginctl enable-linger"
    return [*lines, linger] if user else lines


def _quote(word: str) -> str:
    """Quote ``word`` for systemd (systemd.syntax(7)), which then expands neither specifiers nor variables."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or any(sign in escaped for sign in " \t'\";") else escaped
