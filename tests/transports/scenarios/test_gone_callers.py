"""A caller who is gone before there is TLS leaves nothing behind."""

from __future__ import annotations

import gc
import select
import socket
import struct
import warnings

import pytest

from farflung.transports.tcp.sockets import TlsContexts


@pytest.mark.parametrize("server_side", [True, False])
def test_wrapping_a_connection_that_was_reset_closes_it(member, server_side: bool) -> None:  # type: ignore[no-untyped-def]
    contexts = TlsContexts(member("a"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()  # a reset, not an end
    select.select([here], [], [], 60.0)
    context = contexts.server if server_side else contexts.client
    name = None if server_side else "b"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ConnectionResetError):
            context.wrap_socket(here, server_side=server_side, server_hostname=name, do_handshake_on_connect=False)
        gc.collect()
    assert here.fileno() == -1
    assert not told
