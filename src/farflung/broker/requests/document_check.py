"""Reads the documents of a large submission in a process that may die, before the broker reads them.

``check_documents`` starts this module as a program. The program has limits of memory and processor time, reads the request from
its standard input, and writes the error, if there is one, to its standard output. So a document that a parser chokes on costs the
broker nothing: other threads of the broker continue meanwhile. One submission is checked at a time. The submissions of one ticket
wait for each other first, so that many of them hold up no other ticket's.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import threading
from collections import defaultdict

from farflung import errors
from farflung.errors import FarflungError, InputError
from farflung.messages.calls import Submit
from farflung.messages.schema import Channel
from farflung.messages.submission import Bundle, parses_quickly
from farflung.messages.wire_form import decode_as, encode
from farflung.units import Bytes, Seconds
from farflung.wire.frames import decode_frame, encode_frame

__all__ = ["check_documents"]

_MEMORY, _SECONDS = Bytes(4_000_000_000), Seconds(120.0)
#: Seconds for the whole process, on a busy machine.
_PATIENCE = 600.0
_one = threading.Lock()
#: By ticket; there are few.
_of_ticket: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def check_documents(request: Submit, ticket: str = "", memory: Bytes = _MEMORY, seconds: Seconds = _SECONDS) -> None:
    """See that the documents of ``request`` can be read with ``memory`` and in ``seconds`` of processor time.

    ``ticket``: of the submitter.

    Raises:
        GraphError, InputError, WireError: a document is corrupt, not allowed, or too large.
    """
    if parses_quickly(request):
        return
    body = b"".join(encode_frame(encode(request)))
    with _of_ticket[ticket], _one:
        try:
            found = subprocess.run(  # noqa: S603 - this interpreter, and a module of this package
                [sys.executable, "-m", "farflung.broker.requests.document_check", str(int(memory)), str(math.ceil(seconds))],
                input=body,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except subprocess.TimeoutExpired:
            raise _too_much(request, memory, seconds) from None
    if found.returncode:
        raise _too_much(request, memory, seconds)
    if found.stdout:
        told = json.loads(found.stdout)
        kind: type[FarflungError] = getattr(errors, told["kind"])
        raise kind(told["text"])


def _too_much(request: Submit, memory: Bytes, seconds: Seconds) -> InputError:
    return InputError(
        f"run {request.run!r:.60}: its documents can't be read with {memory} of memory in {seconds}; submit a smaller graph"
    )


def _check(memory: int, seconds: int) -> None:
    """Check the request in the standard input; the process dies beyond its limits."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        Bundle.of(decode_as(decode_frame(sys.stdin.buffer.read()), Channel.REQUESTS, Submit))
    except FarflungError as error:
        sys.stdout.write(json.dumps({"kind": type(error).__name__, "text": str(error)}))


if __name__ == "__main__":
    _check(*map(int, sys.argv[1:]))
