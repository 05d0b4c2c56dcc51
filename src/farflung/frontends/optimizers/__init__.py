"""Optimizers of torch, and users' own, as data (the format is in ``farflung.optim``).

In the order of data flow:

``named_optimizers``      the optimizers that a job can name, and Lion
``recorder``   notes what an optimizer does to a parameter: tensor operators, and through ``traced_numbers`` the numbers
``notes``      the calls in their order, and which place holds which tensor
``traced_numbers``     Python numbers that note what is computed with them
``capture``    an optimizer becomes a rule book
``schedules``  schedules of the caller as tables of values
"""
