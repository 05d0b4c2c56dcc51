"""Fills placeholders from a source by the step number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from farflung.data.base import Array, Source, bind
from farflung.data.mixture import Mixture
from farflung.data.pixels import Augmentation, image_fields
from farflung.data.sampler import Ledger, Sampler
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec

__all__ = ["Loader"]


class Loader:
    """Fills the placeholders ``wanted`` of this machine's stages.

    ``placeholders``: all of the graph's, in call order, first dimension the micro-batch; ``sizes``: the job's micro-batches.

    Raises:
        InputError: a placeholder has no field.
        DataError: data is missing here, or does not fit.
    """

    def __init__(
        self,
        data: DataSpec,
        source: Source,
        placeholders: Mapping[str, TensorSpec],
        sizes: Sequence[int],
        seed: int,
        wanted: Collection[str] | None = None,
    ) -> None:
        self.fields = bind(data, source, placeholders, wanted)
        self.source = source
        self._dtypes = {name: placeholders[name].dtype for name in self.fields}
        self._sizes = tuple(sizes)
        self._images = image_fields(source, self.fields.values())
        self._augmentation = Augmentation(data.image, seed)
        self.sampler = source.sampler(seed) if isinstance(source, Mixture) else Sampler(source.size, seed)

    def batch(self, step: int, micro_batch: int, wanted: Collection[str] | None = None) -> dict[str, Array]:
        """Placeholder -> array of shape ``(samples, ...)`` for one micro-batch of step ``step`` (from 0)."""
        fields = {name: field for name, field in self.fields.items() if wanted is None or name in wanted}
        indices = self.sampler.indices(step, micro_batch, self._sizes)
        found = self.source.batch(indices, tuple(dict.fromkeys(fields.values())))
        for field in self._images & found.keys() if self._augmentation.on else ():
            found[field] = self._augmentation(found[field], self.sampler.positions(step, micro_batch, self._sizes)[0])
        return {name: found[field].astype(_dtype(self._dtypes[name]), copy=False) for name, field in fields.items()}

    def ledger(self, steps: int) -> Ledger:
        """What ``steps`` committed steps have used."""
        return self.sampler.ledger(steps, self._sizes)

    def fingerprint(self) -> dict[str, str]:
        """Content hashes of what this machine reads (see ``compare_fingerprints``)."""
        return self.source.fingerprint(tuple(dict.fromkeys(self.fields.values())))


def _dtype(name: Any) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found
