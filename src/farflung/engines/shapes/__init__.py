"""The shape-only engine: every array is zeros of the declared shape, and no operator is computed. For tests of plans.

``engine`` is what ``get_engine("shapes")`` gives, ``runner`` a stage.
"""
