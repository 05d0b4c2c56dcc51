"""Optimizers as data: what an optimizer does to one parameter in one step, as a short program of tensor and number operators.

In the order of data flow:

``numbers``   the arithmetic of programs on Python numbers (step counts, rates, bias corrections)
``program``   rules, their programs and the states that they keep
``document``  a rule book as bounded JSON, and the checks that it must pass
``eight_bits`` states in 8 bits between steps
``figures``   bytes of state and operations of an update, for plans
"""

from farflung.optim.document import check_optimizer, needs_rules, read_rules, rules_of, write_rules
from farflung.optim.eight_bits import SCALE, check_stored, packed_states, packs, stored_shapes, unpacked_states
from farflung.optim.figures import checkpoint_bytes, file_bytes, state_bytes, state_factor, update_bytes, update_flops
from farflung.optim.program import NARROW, WIDE_SLOTS, Rule, RuleBook, StateSlot, UpdateProgram, updated_dtype

__all__ = [
    "NARROW",
    "SCALE",
    "WIDE_SLOTS",
    "Rule",
    "RuleBook",
    "StateSlot",
    "UpdateProgram",
    "check_optimizer",
    "check_stored",
    "checkpoint_bytes",
    "file_bytes",
    "needs_rules",
    "packed_states",
    "packs",
    "read_rules",
    "rules_of",
    "state_bytes",
    "state_factor",
    "stored_shapes",
    "unpacked_states",
    "update_bytes",
    "update_flops",
    "updated_dtype",
    "write_rules",
]
