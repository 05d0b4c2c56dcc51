"""Thin adapters to programs that users have.

- ``trackers``: experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, CSV.
"""
