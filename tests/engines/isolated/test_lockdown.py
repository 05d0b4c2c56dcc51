"""What a locked process can't do any more. Each trial is a call that works before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from farflung.engines.isolated.lockdown import PROTECTIONS

_TRIALS = """
import mmap, os, socket, sys
from farflung.engines.isolated.lockdown import Limits, lock_down, new_namespaces

place = sys.argv[1]
trials = {
    "socket": lambda: socket.socket(),
    "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "fork": lambda: os.fork() or os._exit(0),
    "program": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "read": lambda: open(place + "/secret").read(),
    "write": lambda: open(place + "/new", "w"),
    "list": lambda: os.listdir("/home"),
    "memory": lambda: bytearray(4 << 30),
    "shared": lambda: os.memfd_create("x"),
    "namespace": lambda: os.unshare(0x10000000) if hasattr(os, "unshare") else open("/proc/self/uid_map", "w"),
    "processor": lambda: open("/proc/cpuinfo").read(),
    "scratch": lambda: open(place + "/scratch/file", "w"),
}
new_namespaces()
if os.fork() == 0:
    print(*lock_down(Limits(memory=1 << 28, scratch=place + "/scratch"), namespaces=True))
    for name, trial in trials.items():
        try:
            trial()
        except (OSError, MemoryError) as error:
            print(name, type(error).__name__)
        else:
            print(name, "works")
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""


def test_a_locked_process_can_only_compute(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("place")
    (place / "secret").write_text("secret")
    (place / "scratch").mkdir()
    words = [sys.executable, "-c", _TRIALS, str(place)]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    holds, results = found[0].split(), dict(line.split() for line in found[1:])
    if set(holds) != set(PROTECTIONS):
        pytest.skip(f"this kernel gives {holds} only")
    assert {name for name, result in results.items() if result == "works"} == {"processor", "scratch"}


def test_the_module_prints_what_this_machine_can_do() -> None:
    words = [sys.executable, "-m", "farflung.engines.isolated.lockdown"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert set(found) <= {*PROTECTIONS, "namespaces"}
    assert "memory" in found
