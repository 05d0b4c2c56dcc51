"""What a trace must know about values, although it has only shapes. A map of the files:

- ``masks``: attention masks as eager PyTorch makes them.
- ``known_values``: integer tensors that depend on nothing but numbers of the code.
- ``mask_branches``: branches on whether a mask has an element.
- ``row_groups``: parts of a tensor whose sizes are data.
"""
