"""Thin adapters to programs that users have.

- ``transformers``: its ``Trainer``, on the workers of farflung.
- ``metrics``: Prometheus. ``open_telemetry``: traces.
- ``trackers``: experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, CSV.
"""
