"""What members, brokers and clients send each other, as types and plain values. Frames themselves are ``farflung.wire``.

- ``versions``: the protocol version, and which differences of versions keep a member out.
- ``fields``: bounded reading of header fields; a wrong one is a ``WireError``.
- ``arrays``: arrays as sections of a frame, with or without a codec.
- ``array_stream``: arrays over the control plane, one tensor after another, in pieces.
- ``submission``: ``Bundle``: a submitted job with its graphs.
- ``holdings``: retained states and decisions about steps.
- ``copy_rounds``: who keeps copies of whose states, and how often.
- ``step_reports``: ``StepReport``: what a worker reports after a step; trace spans.
- ``link_reports``: what training traffic says about links.
- ``probes``: the result of a bandwidth probe.
- ``relays``: relays, the pairs that they serve, what they carried.
"""
