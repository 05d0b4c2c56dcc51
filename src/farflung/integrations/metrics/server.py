"""An HTTP server with one page for Prometheus, on one thread."""

from __future__ import annotations

from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from farflung.errors import InputError
from farflung.thread_group import ThreadGroup

__all__ = ["MetricsServer"]

#: Seconds that a caller may take for a request: there is one thread for all.
_PATIENCE = 5


class _Quiet(WSGIRequestHandler):
    """Logs nothing, and ends a connection that sends nothing."""

    timeout = _PATIENCE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing: Prometheus asks every few seconds."""


class MetricsServer:
    """Serves ``/metrics`` until ``close``, on a thread "metrics"."""

    def __init__(self, address: str, collector: Collector) -> None:
        """Listen at ``address`` (HOST:PORT; port 0 is any free one).

        Raises:
            InputError: the address can't be listened at.
        """
        registry = CollectorRegistry()
        for one in (collector, ProcessCollector(registry=None), PlatformCollector(registry=None)):
            registry.register(one)
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise InputError(f"--metrics {address!r} is not an address to listen at: write host:port, e.g. 127.0.0.1:9464")
        try:
            self._server = WSGIServer((host, int(port)), _Quiet)
        except OSError as error:
            raise InputError(f"--metrics {address}: can't listen there: {error.strerror}; choose another address") from None
        self._server.set_app(make_wsgi_app(registry))
        self.address = f"{host}:{self._server.server_port}"
        self._threads = ThreadGroup()
        self._threads.spawn("metrics", self._server.serve_forever)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and join its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._threads.join()
