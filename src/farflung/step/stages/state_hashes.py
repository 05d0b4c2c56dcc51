"""Hashes of states, by which a copy is compared with what its owner computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from farflung.checkpoint.manifest import OPTIMIZER
from farflung.engines.base import Array
from farflung.wire.arrays import pack

__all__ = ["state_hashes"]


def state_hashes(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Return the hash of each state, with its optimizer slots. ``arrays``: under the names of ``checkpoint.pack``."""
    digests: defaultdict[str, Any] = defaultdict(sha256)
    for key in sorted(arrays):
        state = key.split("/", 2)[-1] if key.startswith(OPTIMIZER) else key
        meta, buffer = pack(np.ascontiguousarray(arrays[key]).reshape(arrays[key].shape))
        digests[state].update(f"{key}\0{meta.dtype}\0{meta.shape}\0".encode())
        digests[state].update(buffer)
    return {state: digest.hexdigest() for state, digest in digests.items()}
