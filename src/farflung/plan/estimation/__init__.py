"""What a plan is predicted to cost.

``cost_tables``          cost of each operator by kind of device, and sums over stages
``stage_memory``         memory of one copy of a stage
``tensor_costs``         cost of a stage whose micro-batches the ranks of a site compute together
``site_costs``           what the ranks of a site exchange
``gradient_exchanges``   bytes of gradients between the copies of stages
``estimate``             the whole estimate: lowers a plan to the arrays of ``cost`` and ``schedules``
``other_systems``        steps of Megatron-LM and DeepSpeed on the same devices, by cost models
``results``              the types of an estimate
"""
