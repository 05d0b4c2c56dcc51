"""The server's life: listen, submit the model, answer until Ctrl-C or until the run ends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from farflung.api.submission import send_weights
from farflung.client.connection import Client
from farflung.errors import InputError, Stopped
from farflung.serving.app import ServedApi, make_app
from farflung.serving.model import ServedModel
from farflung.serving.service import Service
from farflung.transports.addresses import host_and_port, is_loopback, listen_at
from farflung.transports.descriptors import raise_descriptor_limit
from farflung.transports.http_patience import patient_protocol

__all__ = ["listen", "serve_model"]


def listen(address: str, key: str) -> socket.socket:
    """Return a socket that listens at ``address`` (``HOST:PORT``; port 0: any free port).

    Raises:
        InputError: it is no address, the port is in use, or other machines can reach it and there is no ``key``.
    """
    found = listen_at(address, "--listen", "127.0.0.1:8000")
    if not key and not is_loopback(found.getsockname()[0]):
        found.close()
        raise InputError(f"--listen {address}: other machines can reach this address, so clients need a key; add --api-key")
    return found


def serve_model(client: Client, model: ServedModel, listening: socket.socket, key: str, say: Callable[[str], None]) -> None:
    """Submit ``model`` and answer requests until Ctrl-C, or until somebody stops the run.

    Raises:
        FarflungError: the run has failed: nobody can serve the model any more.
    """
    send_weights(client, model.bundle)
    service = Service(client, model.bundle, model.settings, say)
    try:
        service.start()
        service.wait_until_ready()
        api = ServedApi(
            model=model.name,
            context=model.context,
            tokenizer=model.tokenizer,
            service=service,
            key=key,
        )
        config = uvicorn.Config(
            make_app(api),
            http=patient_protocol(),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        raise_descriptor_limit()
        server = uvicorn.Server(config)

        def end() -> None:
            server.should_exit = True

        service.on_end = end
        if service.ended is not None:  # before ``on_end`` was set
            end()
        say(f"serving {model.name} at http://{host_and_port(*listening.getsockname()[:2])}/v1 (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):  # it has answered what it had begun
            server.run(sockets=[listening])
        if service.ended is not None:
            raise service.ended
    except Stopped as over:
        say(str(over))
    finally:
        service.close()
