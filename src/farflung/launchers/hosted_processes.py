"""The processes of a cluster on one host: started detached, found again by files, stopped with a grace period.

| file in the cluster's folder on the host | content |
| --- | --- |
| ``broker/`` | the broker's folder |
| ``processes/NAME.json`` | the process id and the start time of a process, so that a reused id is not mistaken for it |
| ``processes/NAME.log`` | what the process prints |
| ``processes/NAME.ticket`` | the join ticket of a worker; only the user can read it |
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from farflung.errors import FarflungError
from farflung.launchers.host_requests import HostedProcess, ProcessStart, StopProcesses
from farflung.security.certificates import check_name
from farflung.security.files import make_private_folder, write_private
from farflung.security.user_home import home

__all__ = ["HostedProcesses"]

#: Bytes of a log at which the next start of the process begins a new one.
_MOST_LOG = 2_000_000
#: Seconds by which two readings of a process's start time may differ.
_SAME_START = 0.1
#: Variables that would hand a ticket or another cluster's settings to a process.
_NOT_INHERITED = re.compile(r"FARFLUNG_TICKET|SSH_.*")


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a process on this host."""

    pid: int
    started: float


_RECORDS = msgspec.json.Decoder(_Record)


class HostedProcesses:
    """The processes of the cluster ``name`` on this host."""

    def __init__(self, name: str, place: Path | None = None) -> None:
        """``place``: the cluster's folder (default: below the user's folder of farflung)."""
        check_name(name, "cluster name")
        self._place = place or home() / "clusters" / name
        self._folder = self._place / "processes"

    @property
    def broker_folder(self) -> Path:
        """The folder of a broker on this host."""
        return self._place / "broker"

    def start(self, wanted: Sequence[ProcessStart]) -> list[HostedProcess]:
        """Start what does not run of ``wanted``. Return all processes that are known afterwards.

        Raises:
            FarflungError: a process can't be started, or its folder can't be made.
        """
        with self._locked():
            for one in wanted:
                check_name(one.name, "process name")
                if not self.runs(one.name):
                    self._spawn(one)
        return self.processes()

    def stop(self, wanted: StopProcesses) -> list[HostedProcess]:
        """End processes: a request first, then, after a time, by force. Return the others."""
        with self._locked():
            names = self._names() if wanted.names is None else wanted.names
            chosen = [name for name in self._names() if name in names and name not in wanted.spared]
            running = [found for name in chosen if (found := self._find(name)) is not None]
            for process in running:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, left = psutil.wait_procs(running, timeout=wanted.seconds)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left)
            for name in chosen:
                for ending in (".ticket", ".json"):  # without a record, nobody looks for the ticket
                    self._file(name, ending).unlink(missing_ok=True)
        return self.processes()

    def processes(self) -> list[HostedProcess]:
        """Return the processes that were started and not stopped."""
        return [HostedProcess(name=name, running=self.runs(name)) for name in self._names()]

    def log(self, name: str) -> Path:
        """Return the log of the process ``name``.

        Raises:
            FarflungError: there is none.
        """
        check_name(name, "process name")
        path = self._file(name, ".log")
        if not path.is_file():
            known = ", ".join(sorted(one.stem for one in self._folder.glob("*.log"))) or "none"
            raise FarflungError(f"there is no log of {name!r} on this host: logs there are {known}")
        return path

    def _spawn(self, wanted: ProcessStart) -> None:
        """Start one process. Its ticket goes through a file that only this user can read."""
        words = list(wanted.words)
        if wanted.ticket:
            path = self._file(wanted.name, ".ticket")
            write_private(path, wanted.ticket.encode())
            words.append(f"@{path}")
        if wanted.broker:
            make_private_folder(self.broker_folder)
            words += ["--home", str(self.broker_folder)]
        kept = {key: value for key, value in os.environ.items() if _NOT_INHERITED.fullmatch(key) is None}
        path = self._file(wanted.name, ".log")
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_LOG:
                path.replace(path.with_name(f"{path.name}.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this very program, without a shell
                [sys.executable, "-u", "-m", "farflung", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, **wanted.environment},
                cwd=Path.home(),
                start_new_session=True,  # it survives the end of the connection that started it
            )
        record = _Record(pid=process.pid, started=psutil.Process(process.pid).create_time())
        write_private(self._file(wanted.name, ".json"), msgspec.json.encode(record))
        process.returncode = 0  # it is not this process's to wait for, and no warning says so

    def runs(self, name: str) -> bool:
        """Return whether the process ``name`` runs."""
        return self._find(name) is not None

    def _find(self, name: str) -> psutil.Process | None:
        """Return the process ``name`` if it runs."""
        try:
            record = _RECORDS.decode(self._file(name, ".json").read_bytes())
            process = psutil.Process(record.pid)
            same = abs(process.create_time() - record.started) < _SAME_START
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise FarflungError(f"{self._file(name, '.json')} can't be read: {error}; remove it") from None

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json")) if self._folder.is_dir() else []

    def _file(self, name: str, ending: str) -> Path:
        return self._folder / f"{name}{ending}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one caller at a time start and stop processes."""
        make_private_folder(self._folder)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
