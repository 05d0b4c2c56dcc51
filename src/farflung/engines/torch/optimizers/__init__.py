"""The update of a stage's parameters.

In the order of data flow:

``wide_update``      parameters in bfloat16 and float16 that are updated in float32
``built_in``         ``torch.optim``, or the rules that a job carries
``update_programs``  the programs of such rules
``packed_states``    states in 8 bits between steps
``offloaded_update`` parameters whose optimizer states are on a disk
"""
