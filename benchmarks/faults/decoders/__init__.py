"""Decoders under the fuzzer, in the order of data flow.

- ``target``: ``Target``: a decoder, valid inputs, and the form of inputs.
- ``mutation``: changes of inputs that keep their form.
- ``wire``, ``documents``, ``pages``: the targets by name: what peers send, what is submitted and stored, HTTP requests.
- ``catalog``: all targets by name.
- ``fuzzer``: the process that ``fuzz-decoders`` starts: libFuzzer over one target.
"""
