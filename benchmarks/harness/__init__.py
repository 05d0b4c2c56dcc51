"""What all benchmarks share: ``base`` and ``catalog`` define them, the other modules make clusters, models and measurements."""
