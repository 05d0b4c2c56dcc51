"""Thin adapters to programs and models that users have.

- ``transformers``: its ``Trainer``, on the workers of farflung.
- ``experts``: models of separate runs and their router, as one model for inference.
- ``metrics``: Prometheus. ``open_telemetry``: traces.
- ``trackers``: experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, CSV.
"""
