"""Who contributed what to runs, and what that cost: samples, work, traffic, hours, energy.

- ``documents``: documents of run folders.
- ``attempt_sums``: sums over the steps of each attempt of a run, read from the run's folder.
- ``entries``: ``ledger_of``: these sums divided among the machines, with their cost.
- ``totals``: the entries of several runs, added up by machine.
- ``csv_file``: the same as a CSV file. ``words``: as text for people.
"""

from farflung.ledger.csv_file import ledger_csv
from farflung.ledger.entries import COLUMNS, Entry, RunLedger, ledger_of
from farflung.ledger.totals import sum_of, totals

__all__ = ["COLUMNS", "Entry", "RunLedger", "ledger_csv", "ledger_of", "sum_of", "totals"]
