"""The control plane: remote calls that take and give frames, over gRPC with TLS.

In the order in which a call passes through them:

- ``client``: ``RpcClient`` calls a server; ``RpcSession`` is a call that stays open in both directions.
- ``channel``: gRPC options, TLS on both ends, the caller's name, one thread per call.
- ``server``: ``RpcServer`` maps method names to handlers, on an ``event_loop``.
- ``calls``: what a handler knows of its call, and the frames of a session.
- ``front``: a gate and limits for connections between the network and the server.
- ``failures``: errors of this program across gRPC, and gRPC's own errors with a cause and a remedy.
"""

from farflung.transports.rpc.calls import Call, FrameStream
from farflung.transports.rpc.client import RpcClient, RpcSession
from farflung.transports.rpc.server import RPC_LIMITS, RpcHost, RpcServer

__all__ = ["RPC_LIMITS", "Call", "FrameStream", "RpcClient", "RpcHost", "RpcServer", "RpcSession"]
