"""The heap of a process with many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Many threads allocate at once; prints the number of arenas that glibc has.
PROGRAM = """
import ctypes, os, tempfile, threading
{limit}
library = ctypes.CDLL(None)
library.fopen.restype = library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes, library.malloc_info.argtypes = [ctypes.c_size_t], [ctypes.c_int, ctypes.c_void_p]
library.fclose.argtypes = [ctypes.c_void_p]
together = threading.Barrier(8)

def allocate():
    together.wait()
    library.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
path = tempfile.mkstemp()[1]
file = library.fopen(path.encode(), b"w")
library.malloc_info(0, file)
library.fclose(file)
print(open(path).read().count("<heap nr="))
os.unlink(path)
"""


def arenas(limit: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(limit=limit)], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_threads_share_two_arenas() -> None:
    assert arenas("") > 2
    assert arenas("from farflung.transports.arenas import limit_arenas; limit_arenas()") == 2
