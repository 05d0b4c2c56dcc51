"""Capture: from a module to a graph.

- ``capture``: ``capture_module``. ``export``: runs ``torch.export``. ``recorder``: notes how weights are initialized.
- ``programs``: initializers as programs. ``fresh_parameters``, ``twins``, ``known_numbers``, ``values``: what an export hides.
- ``lowering``: from export's nodes to operators. ``arguments``, ``composites``, ``scatter``, ``results``: single operators.
- ``functions``, ``gradients``: custom functions with their own backward. ``opaque``: operators that export must not open.
- ``patches``: replaced functions of libraries. ``model_warnings``: what a model warns of. ``drafts``: the last steps.
- ``ambient``, ``checks``: what a capture refuses.
"""
