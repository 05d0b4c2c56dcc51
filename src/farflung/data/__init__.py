"""Data on the machine that reads it: sources, a deterministic order of samples, and placeholders filled by step number.

- ``base``: what a source offers. ``job_source``: the source of a job.
- ``files``: finds, hashes and caches files. ``objects``, ``fetching``: files behind a URL.
- ``text``, ``tokenizers``, ``arrays``, ``images``, ``pixels``, ``tables``, ``mixture``: kinds of sources.
- ``sampler``: which samples a micro-batch has. ``loader``: fills placeholders. ``timed_reads``: reads on a thread.
- ``fit``: whether data fit a model. ``local_check``: whether files exist on the submitting machine.
- ``lazy_property``: a property that is computed once.
"""

from __future__ import annotations

from farflung.data.base import Place, Source, assign, bind, compare_fingerprints, outvoted
from farflung.data.fit import check_fit, check_vocabulary, placeholders_of
from farflung.data.job_source import SOURCES, open_source, open_tokenizer, tokenizer_of
from farflung.data.loader import Loader
from farflung.data.local_check import absent_data
from farflung.data.mixture import Mixture
from farflung.data.sampler import Ledger, Sampler
from farflung.data.tokenizers import Tokenizer

__all__ = [
    "SOURCES",
    "Ledger",
    "Loader",
    "Mixture",
    "Place",
    "Sampler",
    "Source",
    "Tokenizer",
    "absent_data",
    "assign",
    "bind",
    "check_fit",
    "check_vocabulary",
    "compare_fingerprints",
    "open_source",
    "open_tokenizer",
    "outvoted",
    "placeholders_of",
    "tokenizer_of",
]
