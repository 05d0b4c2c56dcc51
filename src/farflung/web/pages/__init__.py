"""The pages, one module each.

- ``page``: what a page gets (``View``), and what the table says of a page (``Page``).
- ``catalog``: ``PAGES``, the table of all pages in the order of the navigation.
- ``cluster``: machines, links, alerts, runs.
- ``run``: one run, or several over each other.
"""
