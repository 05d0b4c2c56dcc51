"""Frames, arrays and headers as bytes (docs/wire-format.md).

- ``frames``: ``Frame``, to bytes and back, whole or from a stream.
- ``headers``: headers as msgpack, with limits.
- ``arrays``: arrays as buffers with a description.
- ``relay_calls``: the frames that transports send by themselves.
"""
