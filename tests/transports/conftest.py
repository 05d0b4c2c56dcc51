"""Members of a small cluster for tests on the loopback, and a check that nothing keeps running."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farflung.security import Credentials, make_request, new_key
from farflung.security.authority import CertificateAuthority

Member = Callable[..., Credentials]


@pytest.fixture(scope="session")
def member(tmp_path_factory: pytest.TempPathFactory) -> Member:
    """Makes credentials by name; ``cluster`` chooses the authority."""
    root: Path = tmp_path_factory.mktemp("clusters")

    def make(name: str, role: str = "worker", cluster: str = "one") -> Credentials:
        now = time.time()
        authority = CertificateAuthority.open(root / cluster, now)
        if role == "broker":
            return authority.server_credentials(now, name)
        key = new_key()
        certificate = authority.sign(make_request(name, key), name=name, role=role, now=now)
        return Credentials(name=name, key=key, certificate=certificate, authority=authority.certificate)

    return make


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every thread that a test started has ended (gRPC's own need a moment after their channel was closed)."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before]

    end, pause, tries = time.monotonic() + 60.0, threading.Event(), 0
    while left():  # not Thread.join: one may be about to start
        tries += 1
        # gRPC's poller ends with its last server, to which errors of calls refer; a whole collection takes half a second
        gc.collect(2 if tries % 50 == 0 else 1)
        assert time.monotonic() < end, f"{', '.join(left())} still running"
        pause.wait(0.005)
