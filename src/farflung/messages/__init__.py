"""What members, brokers and clients send each other: one immutable type for each kind of message. Frames are ``farflung.wire``.

A sender builds a message and calls ``encode``. A receiver gives each frame to a ``Router``, which decodes it once and calls the
handler of the message's type. A new message is a class in one of these modules:

- ``commands``: the broker to a worker.
- ``reports``: a worker to the broker.
- ``calls``: requests to the broker, its answers, and uploads.
- ``watching``: the broker to everybody who watches a run.
- ``data``: members of a run to each other: values, sums, votes, copies.
- ``hybrid``: servers of a stage and their helpers.
- ``serving``: a serving process and the workers of its model.

What they rest on:

- ``schema``: ``Message``, bounded field types, channels, and the table from kinds to types.
- ``wire_form``: ``encode`` and ``decode``.
- ``router``: ``Router``: from types to handlers.
- ``remote_calls``: calls of the control plane with messages in place of frames.
- ``versions``: the protocol version, and which differences of versions keep a member out.
- ``submission``: ``Bundle``: a submitted job with its graphs.
- ``exports``: a checkpoint for other programs.
- ``document_bounds``: what the documents of a job may cost, checked before they are parsed.
- ``array_headers``: how headers describe arrays.
- ``arrays``: arrays as sections of a frame, with or without a codec.
- ``array_stream``: arrays over the control plane, one tensor after another, in pieces.

- ``conversions``: between items of messages and the types that the program uses.
"""
