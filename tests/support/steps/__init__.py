"""Executors as threads of this process under a plan made by hand.

``small_runs``              jobs and setups of a graph made by hand
``executor_threads``        executors as threads, and the plain loop that they must equal
``replica_cases``           such runs whose stages have replicas
``strategy_cases``          such runs under synchronization strategies
``strategy_specification``  such runs against the specification in NumPy
``sample_cache_cases``      such runs whose links cache samples
``hostile_members``         a replica that sends wrong gradients
"""
