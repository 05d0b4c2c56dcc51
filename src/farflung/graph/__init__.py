"""The OP-DAG: a model as data, how it is written, checked, cut and drawn.

- ``nodes``: the parts of a graph: operators, states, references. ``ir``: ``Graph``.
- ``builder``: graphs by hand; ``layers``: the layer types that it knows.
- ``opset``, ``operator_tables``: the operators that a graph may use. ``operator_signatures``, ``signatures``: their arguments.
- ``shapes``: shapes of results. ``gradient``: backwards that a graph carries. ``weight_expressions``: first values of weights.
- ``document``: the graph as JSON. ``validate``: the rules that every graph meets.
- ``modules``: runs of one module. ``parameter_blocks``: parameters of a block. ``quantized_weights``: weights in 8 or 4 bits.
- ``cut``: the part of one stage. ``tensor_parallel``: how ranks divide it. ``drift``: where engines may differ.
- ``render``: a drawing.
"""

from farflung.graph.ir import Graph

__all__ = ["Graph"]
