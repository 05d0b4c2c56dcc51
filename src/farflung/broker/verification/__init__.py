"""Verification of members: what replicas find when they compute a unit of another one again.

- ``unit_verdicts``: ``UnitVerdicts``: the digests of an attempt, and what follows from them. No I/O.
- ``run_verification``: ``RunVerification``: step reports in, events and commands out.
"""
