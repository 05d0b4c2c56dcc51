"""Benchmarks of planners, schedules, the simulator and predictions."""
