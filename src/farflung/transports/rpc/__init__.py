"""The control plane: remote calls that take and give frames, over gRPC with TLS.

In the order in which a call passes through them:

- ``client``: ``RpcClient`` calls a server; ``RpcSession`` is a call that stays open in both directions.
- ``channel``: gRPC options, TLS on both ends, the caller's name, one thread per call.
- ``server``: ``RpcServer`` maps method names to handlers, on an ``event_loop``.
- ``read_places``: how many messages of callers are taken from the network at once.
- ``calls``: what a handler knows of its call, and the frames of a session.
- ``front``: a gate and limits for connections between the network and the server.
- ``failures``: errors of this program across gRPC, and gRPC's own errors with a cause and a remedy.

The package exports the client's side alone: most commands call a broker, and none but ``farflung broker`` is one.
"""

from farflung.transports.rpc.channel import RPC_LIMITS
from farflung.transports.rpc.client import RpcClient, RpcSession

__all__ = ["RPC_LIMITS", "RpcClient", "RpcSession"]
