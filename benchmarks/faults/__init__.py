"""Benchmarks under faults: deaths, late joiners, helpers, damaged inputs."""
