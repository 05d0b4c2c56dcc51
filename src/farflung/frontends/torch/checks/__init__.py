"""What a graph cannot hold of a forward, each with an error that names the line:

- ``data_dependence``: control flow and shapes that depend on the values of tensors.
- ``data_asserts``: ``assert`` statements on data, which a graph leaves out.
- ``frozen_random``: numbers of Python's or NumPy's generators.
- ``module_attributes``: attributes of the module that the forward changes.
"""
