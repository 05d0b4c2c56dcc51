"""Benchmarks of training: exactness, cost, memory, and loss under compression and synchronization."""
