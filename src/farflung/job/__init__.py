"""The job description: what is computed, never where.

- ``spec``: ``JobSpec``; ``data_spec``, ``optimizer_names``, ``rates``, ``traffic``: its parts. ``section``: a table of a file.
- ``patterns``, ``groups``, ``value_tables``, ``engine_ranges``: values of single keys.
- ``load``: reads job files. ``explain``: errors in one line. ``check``: rules between fields.
"""

from __future__ import annotations

from farflung.job.check import check_job
from farflung.job.load import from_json, load_job, make_job, to_json, training_hash
from farflung.job.rates import rates
from farflung.job.spec import JobSpec

__all__ = ["JobSpec", "check_job", "from_json", "load_job", "make_job", "rates", "to_json", "training_hash"]
