"""Frames, arrays and headers as bytes (docs/wire-format.md).

- ``frames``: ``Frame``, to bytes and back, whole or from a stream.
- ``headers``: headers as msgpack, with limits.
- ``arrays``: arrays as buffers with a description.
- ``struct_types``: types of messages, for several threads.
- ``relay_calls``: the frames that transports send by themselves.
"""
