"""Steps of engines, and the reference executions that they are compared with.

``keyed``                plain PyTorch under the random numbers that a graph prescribes
``replay``               a reference interpreter of graphs and initializer programs
``engine_drive``         runs the stages of a cut one after the other
``engine_comparison``    one step of a model on an engine, to compare engines
``engine_closeness``     compares an engine with a plain loop up to rounding
``interpreted_kernels``  selection kernels against their specification in NumPy
``optimizers``           optimizers, and the loop that each is compared with
``sites``                sites of two ranks on the CPU
``unguarded``            programs without argument checks, in which an operator can crash
"""
