"""Code that several test modules share. Each package lists its modules.

``models``     models, and data for them
``plans``      graphs, topologies and plans
``engines``    steps of engines, and reference executions
``steps``      executors as threads under a plan made by hand
``runs``       brokers and workers in this process
``records``    run folders and checkpoints without a run
``network``    peers, packets and routers
``servers``    servers and browsers
``commands``   commands as processes, and job files
``documents``  contents of pages and dashboards
"""
