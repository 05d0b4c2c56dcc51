"""Hosts that `ssh` reaches: one sshd for each on the loopback, as this user, with keys and folders of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from benchmarks.harness.machines.waiting import until
from farflung.child_processes import end_all

__all__ = ["Host", "Hosts", "has_sshd", "ssh_hosts"]

_ROOT = Path(__file__).resolve().parents[3]
_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or ""


def has_sshd() -> bool:
    """Return whether this machine has OpenSSH with its server."""
    return bool(_SSHD) and shutil.which("ssh") is not None


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host ``name`` whose user folder of farflung is ``home``."""

    name: str
    port: int
    home: Path
    server: subprocess.Popen[bytes]

    def pids(self, cluster: str) -> dict[str, int]:
        """Return the processes of ``cluster`` that were started on this host, by name."""
        folder = self.home / "clusters" / cluster / "processes"
        return {path.stem: msgspec.json.decode(path.read_bytes())["pid"] for path in folder.glob("*.json")}


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Several hosts. ``config``: the configuration of ssh that knows them by name."""

    place: Path
    hosts: Sequence[Host]
    config: Path

    def cluster_file(self, name: str = "lab", *, workers: str = "", changes: str = "") -> Path:
        """Write a cluster file for all hosts. ``workers``: further lines of [workers]. ``changes``: lines after the hosts."""
        path = self.place / f"{name}.toml"
        hosts = "".join(f'[[ssh.hosts]]\naddress = "{host.name}"\n' for host in self.hosts)
        path.write_text(
            f'provider = "ssh"\n[broker]\nlisten = "127.0.0.1:0"\nno_web = true\n'
            f'[workers]\nlisten = "127.0.0.1:0"\ndevice = "cpu"\n{workers}\n'
            f'[ssh]\ncommand = "{sys.executable} -m farflung"\noptions = ["-F", "{self.config}"]\n{hosts}{changes}'
        )
        return path


@contextmanager
def ssh_hosts(place: Path, *names: str) -> Iterator[Hosts]:
    """Start an sshd for each name. At the end, no process of theirs is left."""
    keys = place / "keys"
    keys.mkdir()
    for key in ("host", "client"):
        make = [shutil.which("ssh-keygen") or "", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / key)]
        subprocess.run(make, check=True)  # noqa: S603 - no shell
    hosts: list[Host] = []
    try:
        hosts.extend(_start(place, keys, name) for name in names)
        known, config = keys / "known_hosts", keys / "config"
        public = (keys / "host.pub").read_text()
        known.write_text("".join(f"[127.0.0.1]:{host.port} {public}" for host in hosts))
        common = f"  HostName 127.0.0.1\n  IdentityFile {keys}/client\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
        config.write_text("".join(f"Host {host.name}\n  Port {host.port}\n{common}" for host in hosts))
        yield Hosts(place=place, hosts=hosts, config=config)
    finally:
        for host in hosts:
            for record in host.home.glob("clusters/*/processes/*.json"):
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(msgspec.json.decode(record.read_bytes())["pid"]).kill()
        end_all([host.server for host in hosts], 5.0)


def _start(place: Path, keys: Path, name: str) -> Host:
    home = place / name
    home.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root wants it for its unprivileged part
    variables = f"FARFLUNG_HOME={home} PYTHONPATH={_ROOT / 'src'} OMP_NUM_THREADS=1"
    words = ["ListenAddress=127.0.0.1", f"AuthorizedKeysFile={keys}/client.pub", "StrictModes=no", "UsePAM=no"]
    words += ["PidFile=none", f"SetEnv={variables}", "PasswordAuthentication=no", "MaxStartups=100"]
    options = [part for word in words for part in ("-o", word)]
    command = [_SSHD, "-D", "-e", "-f", "/dev/null", "-h", str(keys / "host"), "-p", str(port), *options]
    with (place / f"{name}.sshd.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - no shell
    until(lambda: server.poll() is not None or _answers(port))
    assert server.poll() is None, (place / f"{name}.sshd.log").read_text()
    return Host(name=name, port=port, home=home, server=server)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connected:
            return connected.recv(4) == b"SSH-"
    except OSError:
        return False
