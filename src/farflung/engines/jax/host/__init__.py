"""What runs on the host with NumPy: programs that change tensors in place, which JAX's arrays cannot.

``operators``   the operators of such programs
``programs``    one call of a program, behind the checks of its arguments and its memory
``initialize``  first values of states
``optimizer``   updates of parameters
"""
