"""Prometheus metrics of brokers and workers (extra ``farflung[metrics]``); ``docs/metrics.md`` lists them.

- ``definitions``: names, types and labels.
- ``broker``: ``BrokerCollector``: reads a broker when Prometheus asks.
- ``worker``: ``WorkerCollector``: reads a worker.
- ``server``: ``MetricsServer``: the page.
"""
