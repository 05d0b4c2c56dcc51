"""The job description: what is computed, never where."""

from __future__ import annotations

from farflung.job.check import check_job
from farflung.job.load import from_json, load_job, make_job, to_json, training_hash
from farflung.job.rates import rates
from farflung.job.spec import JobSpec

__all__ = ["JobSpec", "check_job", "from_json", "load_job", "make_job", "rates", "to_json", "training_hash"]
