"""The pages, one module each.

- ``page``: what a page gets (``View``), and what the table says of a page (``Page``).
- ``catalog``: ``PAGES``, the table of all pages in the order of the navigation.
- ``cluster``: machines, links, alerts, runs.
- ``link_map``: the table of links. ``actions``: what a user may do to runs and workers.
- ``runs``: all runs. ``run``: one run; ``run_charts``, ``run_tables``: its parts. ``compare``: several runs over each other.
- ``ledger``: what each machine contributed.
- ``what_if``, ``what_if_scenario``, ``what_if_results``: a cluster before it exists.
"""
