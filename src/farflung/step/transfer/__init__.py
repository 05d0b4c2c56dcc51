"""Values and messages on their way between workers.

- ``value_transfer``: key, codec and destination of every value that moves between stages.
- ``device_codings``: which values the engine encodes where it computes them.
- ``sample_cache``: what both ends of a link cached of samples that come again.
- ``spoilt_values``: who sent the first value of a step that is not finite.
- ``outbox``: one sender thread per peer and urgency encodes and posts frames.
- ``traffic_meter``: what each step sends.
- ``codec_gauge``: time and error of codecs on each link.
- ``frame_log``: the spans of frames in a worker's trace.
"""
