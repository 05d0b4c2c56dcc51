"""From models to graphs. The import of this package fails with one clear line where PyTorch is missing.

- ``torch``: captures a module. ``caller``: what a caller of ``train`` brings around the module.
- ``recipes``: models by name. ``quantized_linear``: linear layers in 8 or 4 bits.
- ``optimizers``: optimizers as data. ``text_model``: a trained language model on this machine.
"""

from farflung.extras import require_torch

require_torch("the capture of a model")
