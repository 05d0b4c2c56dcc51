"""The table of all pages, in the order of the navigation."""

from __future__ import annotations

from farflung.web.pages import cluster, compare, ledger, run, runs, what_if
from farflung.web.pages.page import Page

__all__ = ["PAGES"]

PAGES: tuple[Page, ...] = (
    Page(path="/cluster", title="Cluster", build=cluster.build, needs_broker=True),
    Page(path="/runs", title="Runs", build=runs.build),
    Page(path="/ledger", title="Ledger", build=ledger.build),
    Page(path="/what-if", title="What if", build=what_if.build),
    Page(path="/run/{run}", title="Run", build=run.build, below="/runs"),
    Page(path="/compare/{runs}", title="Comparison", build=compare.build, below="/runs"),
)
