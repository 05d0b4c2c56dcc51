"""One worker's part in verification: digests of its own units, and units of other replicas that it computes again.

- ``unit_digests``: digests of what a unit takes and gives.
- ``unit_inputs``: the inputs of a unit, in the order in which messages carry them.
- ``retained_inputs``: inputs of the last steps, and the workers that asked for them.
- ``recomputation``: computes a unit again, from the states of its step.
- ``verification``: ``Verification``: which unit is verified when.
"""
