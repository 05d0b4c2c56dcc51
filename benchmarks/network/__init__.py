"""Benchmarks of links, of the emulator, and of pipelines on emulated networks."""
