"""Graphs, topologies and plans made by hand or at random, without a capture.

``chains``                small graphs and random topologies
``random_graphs``         random graphs for property tests, and their interpreter in NumPy
``hand_plans``            plans of a chain of equal layers
``hand_replicas``         the same with replicas
``grid_cases``            random topologies for grids, and the plain cost of an assignment
``layer_time_instances``  layer times to schedule, and the obvious solutions
"""
