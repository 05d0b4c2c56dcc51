"""The engine that computes with PyTorch. The import of this package fails with one clear line where PyTorch is missing."""

from farflung.extras import require_torch

require_torch("computing on this machine")
