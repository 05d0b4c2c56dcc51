"""The reference engine: every operator as a NumPy formula, with the gradient that differentiation of the formula gives.

In the order of data flow:

``engine``      what ``get_engine("reference")`` and ``get_engine("reference64")`` give
``runner``      one stage: forward, backward, update
``passes``      one micro-batch in a stage
``evaluation``  one operator: its arguments, its random numbers, its declared results
``operators``   the table of operators
``draws``       the random numbers of a call
``tape``        reverse-mode differentiation
"""
