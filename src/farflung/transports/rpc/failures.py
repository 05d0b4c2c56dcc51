"""Errors across gRPC: ours arrive as what they were, gRPC's own become ours with a cause that people can act on."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import grpc

from farflung import errors
from farflung.errors import ConnectionLost, FarflungError, SecurityError, VersionError, WireError
from farflung.transports.base import lost

__all__ = ["abort", "explain"]

_KEY = "farflung-error"
_MAX_TEXT = 1500
_LAST_ERROR = re.compile(r"last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: |unix:\S+: )?(.*)", re.DOTALL)
_REFUSED_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|Hostname Verification|TSI_PROTOCOL_FAILURE|WRONG_VERSION_NUMBER")
#: Words of gRPC for a connection that ended under a call.
_BROKEN = re.compile(r"Stream removed|Socket closed|RST_STREAM|GOAWAY|recvmsg|Connection reset|Broken pipe")


async def abort(context: grpc.aio.ServicerContext[bytes, bytes], error: FarflungError) -> NoReturn:
    """End a call on the server with ``error``; the caller gets the same class and text."""
    kind = type(error).__name__
    await context.abort(grpc.StatusCode.ABORTED, str(error)[:_MAX_TEXT] or kind, ((_KEY, kind),))


def explain(failure: Any, peer: str, address: str) -> FarflungError:
    """The error of this program that a failed call stands for (``failure``: a ``grpc.RpcError`` or an ended call)."""
    code, details = failure.code(), failure.details() or ""
    peer = "the broker" if peer == "broker" else peer
    named = dict(failure.trailing_metadata() or ()).get(_KEY)
    if isinstance(named, str) and named in errors.__all__:
        kind: type[FarflungError] = getattr(errors, named)
        return kind(details)
    match code:
        case grpc.StatusCode.UNAVAILABLE if _REFUSED_CERTIFICATE.search(details):
            return SecurityError(
                f"the server at {address} cannot prove that it is {peer} of this cluster ({_cause(details)}); "
                "check the address, or join again with a fresh ticket"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return lost(peer, address, "no answer in time")
        case grpc.StatusCode.UNIMPLEMENTED:
            return VersionError(f"{peer} at {address} does not know this call; install the same farflung on both machines")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "Concurrent RPC limit" in details:
            return ConnectionLost(f"{peer} at {address} has too many calls at once; try again in a minute")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return WireError(f"{peer} at {address} refused a message: {details}")
        case grpc.StatusCode.UNKNOWN:
            return FarflungError(f"{peer} at {address} failed inside: {details}; see its log")
    return lost(peer, address, _cause(details))


def _cause(details: str) -> str:
    found = _LAST_ERROR.search(details)
    cause = (found[1] if found else details).strip().rstrip(".")
    return "" if _BROKEN.search(cause) else cause
