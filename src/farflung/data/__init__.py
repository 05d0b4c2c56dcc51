"""Data on the machine that reads it: sources, a deterministic order of samples, and placeholders filled by step number."""

from __future__ import annotations

from farflung.data.base import Place, Source, assign, bind, compare_fingerprints, outvoted
from farflung.data.fit import check_fit, check_vocabulary, placeholders_of
from farflung.data.load import Loader
from farflung.data.local_check import absent_data
from farflung.data.mixture import Mixture
from farflung.data.open import SOURCES, open_source, open_tokenizer, tokenizer_of
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
