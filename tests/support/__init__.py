"""Code that several test modules share.

Graphs, plans and topologies:
``chains``                 small graphs and random topologies
``random_graphs``          random graphs for property tests, and their interpreter in NumPy
``hand_plans``             plans of a chain of equal layers; ``hand_replicas``: with replicas
``grid_cases``             random topologies for grids, and the plain cost of an assignment

Models and engines:
``engine_models``          small models of all families; ``layer_models``: models that are hard to capture
``engine_drive``           runs the stages of a cut one after the other
``interpreted_kernels``    tensors for selection kernels
``zoo``                    the models that capture must support
``captured_models``        built-in models that are captured once
``keyed``, ``replay``      reference executions of a graph and of its initializers
``small_nets``             a small network in NumPy, and groups of replicas that train it
``layer_time_instances``   layer times to schedule, and the obvious solutions

Runs, from one process to many:
``small_training``         ``train`` on workers of this process and on workers of a ticket
``executor_threads``       executors as threads under a plan made by hand
``replica_cases``          such runs whose stages have replicas
``strategy_cases``         such runs under synchronization strategies
``sample_cache_cases``     such runs whose links cache samples
``small_runs``             jobs and setups of a graph made by hand
``loopback``               a broker and workers in this process, over real connections
``cluster_fixtures``       fixtures of tests that run workers
``played_runs``            a submitted bundle, followed to its end
``worker_deaths``          ways to lose a worker or a link in mid step
``resumed_runs``           the second half of a run
``model_exports``          runs of models of other libraries, and their export
``helped_runs``            runs with helpers
``thread_table``           the table of threads in the documentation
``patient_cluster``        processes whose broker expires leases late
``quiet``                  waiting for transports

Command line and packets:
``command_processes``      commands as processes
``error_lines``            commands that end in one line of error
``planned_jobs``           the job of the tests of ``farflung plan``
``documented_commands``    the commands that the documentation shows
``ipv4``                   packets of a TUN device
"""
