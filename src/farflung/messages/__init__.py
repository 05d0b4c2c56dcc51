"""What members, brokers and clients send each other: one immutable type for each kind of message. Frames are ``farflung.wire``.

A sender builds a message and calls ``encode``. A receiver gives each frame to a ``Router``, which decodes it once and calls the
handler of the message's type. A new message is a class in one of these modules:

- ``commands``: the broker to a worker.
- ``reports``: a worker to the broker.
- ``calls``: requests to the broker, its answers, and uploads.
- ``watching``: the broker to everybody who watches a run.
- ``data``: members of a run to each other: values, sums, votes, copies.
- ``hybrid``: servers of a stage and their helpers.

What they rest on:

- ``schema``: ``Message``, bounded field types, channels, and the table from kinds to types.
- ``wire_form``: ``encode`` and ``decode``.
- ``router``: ``Router``: from types to handlers.
- ``versions``: the protocol version, and which differences of versions keep a member out.
- ``submission``: ``Bundle``: a submitted job with its graphs.
- ``arrays``: arrays as sections of a frame, with or without a codec.
- ``array_stream``: arrays over the control plane, one tensor after another, in pieces.

Readers of single fields, which the types replace:

- ``fields``: bounded reading of header fields; a wrong one is a ``WireError``.
- ``holdings``: retained states and decisions about steps.
- ``copy_rounds``: who keeps copies of whose states, and how often.
- ``step_reports``: ``StepReport``: what a worker reports after a step; trace spans.
- ``link_reports``: what training traffic says about links.
- ``probes``: the result of a bandwidth probe.
- ``relays``: relays, the pairs that they serve, what they carried.
"""
