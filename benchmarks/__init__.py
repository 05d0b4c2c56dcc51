"""Everything that measures a figure of the documentation: ``python -m benchmarks NAME`` in a checkout. Not part of the wheel.

- ``harness``: what a benchmark is, its report, the catalog, clusters, device emulation, memory probes.
- ``training``: exactness, overhead, memory, codecs, loss under compression and under synchronization strategies.
- ``network``: the emulator, transports, measured links, pipelines on emulated networks.
- ``planning``: planners, searches, schedules, the simulator, predicted against measured step times.
- ``faults``: kills, helpers that disappear, late joiners, damaged inputs.
- ``papers``: tables and figures of the papers.
"""
