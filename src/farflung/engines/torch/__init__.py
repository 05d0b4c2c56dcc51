"""The engine that computes with PyTorch. The import of this package fails with one clear line where PyTorch is missing.

- ``engine``: ``TorchEngine``. ``accelerators``, ``warmup``: its devices. ``verify``: checks declared shapes.
- ``runner``: one stage. ``program``: its operators as calls. ``guards``, ``index_ranges``: checks before a kernel runs.
- ``backward``: backwards that autograd does not have. ``cached_attention``: attention of served tokens.
- ``states``: tensors of a stage. ``initialize``: their first values. ``optimizers``: their update.
- ``keys``, ``draws``: random numbers by key. ``arrays``: arrays to tensors and back. ``heap``: returns freed memory.
- ``ranks``: one rank of a site. ``trained_module``: trained states in a module of the caller.
- ``codecs``: values that leave the device encoded.
"""

from farflung.extras import require_torch

require_torch("computing on this machine")
