"""From models to graphs. The import of this package fails with one clear line where PyTorch is missing."""

from farflung.extras import require_torch

require_torch("the capture of a model")
