"""What engines without PyTorch compute with NumPy: programs that change arrays in place, and PyTorch's random numbers.

``random_bits`` PyTorch's CPU generator
``operators``   the operators of initializers and optimizers
``call_bytes``  how many bytes a call takes, before it runs
``programs``    one call of a program, behind the checks of its arguments and its memory
``initialize``  first values of states
``states``      states and gradients of a stage
``gradients``   what a stage runner does with gradients on the host, and the update
``optimizer``, ``rules``  updates of parameters
"""
