"""The tests of this folder need JAX (``pip install 'farflung[jax]'``)."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
