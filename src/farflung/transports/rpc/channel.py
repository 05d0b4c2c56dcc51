"""What all uses of gRPC here have in common: options, TLS on both sides, who the caller is, a thread for each call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import grpc

from farflung.errors import InputError, SecurityError
from farflung.security import Caller, Credentials, key_fingerprint, read_caller, tls_name
from farflung.transports.config import Insecure, Pinned, TransportConfig
from farflung.wire.frames import Frame, FrameLimits, encode_frame

__all__ = [
    "PEER_KEY",
    "RPC_LIMITS",
    "RPC_PREFIX",
    "SERVER_WINDOW",
    "CallThreads",
    "add_port",
    "caller_of",
    "join_frame",
    "max_message",
    "open_channel",
]

#: What one frame of the control plane may hold; larger things travel as streams of frames.
RPC_LIMITS = FrameLimits(max_header=16 << 20, max_bytes=64 << 20)
RPC_PREFIX = "/farflung.Control/"


#: Bytes of a call that may be under way to a caller: 640 Mbit/s at a round trip of 0.1 s; and the least that HTTP/2 starts with.
_WINDOW, _LEAST_WINDOW = 8 << 20, (1 << 16) - 1
#: The same to a server, which takes as much for each call that nobody reads. The rest of a message that is read comes at once.
SERVER_WINDOW = 1 << 18

P = ParamSpec("P")
T = TypeVar("T")

#: Metadata that says a caller's name where no certificate does (tests only).
PEER_KEY = "farflung-peer"


def max_message(limits: FrameLimits) -> int:
    """The largest message that holds a frame within ``limits``."""
    return limits.max_header + limits.max_bytes + 16 * limits.max_sections + 64


def join_frame(frame: Frame, limits: FrameLimits) -> bytes:
    """``frame`` as one message (TLS checks integrity, so no checksums of sections).

    Raises:
        WireError: it passes the limits.
    """
    return b"".join(encode_frame(frame, checksum=False, limits=limits))


class CallThreads(futures.ThreadPoolExecutor):
    """A thread for each running call and none besides.

    Links are calls that last as long as a job: in a pool of fixed size one more link than threads would wait for ever.
    """

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1)
        self._name = name
        self._running: set[threading.Thread] = set()
        self._guard = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        future: futures.Future[T] = futures.Future()
        future.set_running_or_notify_cancel()  # a caller that breaks off does not end the thread

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - as in every executor: the error belongs to the future
                future.set_exception(error)
            finally:
                with self._guard:
                    self._running.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"call-{self._name}", daemon=True)
        with self._guard:
            self._running.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: this call has none, but gRPC's own thread must live
            with self._guard:
                self._running.discard(thread)
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if not wait:
            return
        with self._guard:
            running = self._running - {threading.current_thread()}
        for thread in running:
            thread.join()


def channel_options(config: TransportConfig, max_message: int, window: int = _WINDOW) -> list[tuple[str, Any]]:
    """Options for channels and servers: message size, keepalive, one connection for each channel, quick second tries.

    ``window``: bytes of a call that may be under way to this end and that nobody has read.
    """
    alive, patience = int(config.keepalive * 1000), int(config.keepalive_timeout * 1000)
    return [
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        ("grpc.keepalive_time_ms", alive),
        ("grpc.keepalive_timeout_ms", patience),
        # without this one gRPC waits 60 s for the answer to a keepalive ping, whatever keepalive_timeout says (seen in 1.85)
        ("grpc.http2.ping_timeout_ms", patience),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min(alive, 1000) // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", max(1000, int(config.connect_timeout * 1000))),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.enable_http_proxy", 0),
        ("grpc.so_reuseport", 0),
        # gRPC measures each connection with a ping after each message, which doubles the packets of heartbeats: a fixed window
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", max(_LEAST_WINDOW, min(max_message, window))),
    ]


def open_channel(
    address: str, peer: str, security: Credentials | Pinned | Insecure, config: TransportConfig, max_message: int
) -> grpc.Channel:
    """A channel to the member ``peer`` at ``address``; over TLS the server must prove that name."""
    options = channel_options(config, max_message)
    if isinstance(security, Insecure):
        return grpc.insecure_channel(address, options)
    if isinstance(security, Pinned):
        credentials = grpc.ssl_channel_credentials(security.certificate)
    else:
        credentials = grpc.ssl_channel_credentials(security.authority, security.key, security.certificate)
    return grpc.secure_channel(address, credentials, [*options, ("grpc.ssl_target_name_override", tls_name(peer))])


def add_port(server: grpc.aio.Server, path: str, security: Credentials | Insecure, *, anonymous: bool = False) -> None:
    """Let ``server`` listen at the socket ``path`` of this machine.

    Callers must show a certificate of the same authority, unless ``anonymous``: then they show none.

    Raises:
        InputError: the socket can't be made.
    """
    address = f"unix:{path}"
    try:
        if isinstance(security, Insecure):
            server.add_insecure_port(address)
        else:
            pair = [(security.key, security.certificate)]
            root = None if anonymous else security.authority
            server.add_secure_port(address, grpc.ssl_server_credentials(pair, root, require_client_auth=not anonymous))
    except RuntimeError as error:
        raise InputError(f"cannot make the socket {path}: {error}; check the rights of the broker's folder") from error


def caller_of(context: grpc.aio.ServicerContext[bytes, bytes], *, insecure: bool) -> Caller | None:
    """Who calls, as his verified certificate says; None if he showed none.

    Raises:
        SecurityError: his certificate is of the cluster but names nobody.
    """
    if insecure:
        told = dict(context.invocation_metadata() or ()).get(PEER_KEY)
        return Caller(name=str(told), role="worker") if told else None
    properties: Any = context.auth_context()  # the stubs say bytes, it is lists of bytes
    if "x509_common_name" not in properties:
        return None
    caller = read_caller(properties.get("x509_subject_alternative_name", ()))
    if caller is None:
        raise SecurityError("the caller's certificate names no member; join again with a ticket")
    shown = properties.get("x509_pem_cert", ())
    return replace(caller, key=key_fingerprint(bytes(shown[0]))) if shown else caller
