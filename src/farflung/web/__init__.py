"""Pages about clusters and runs: the live dashboard (the extra ``farflung[web]``) and the static reports.

- ``sources``: what pages read: run folders, the broker's status, links. One reader for all browsers.
- ``widgets``: layout, theme, charts, tables, figures. They use NiceGUI.
- ``pages``: one module for each page, and the table of all pages.
- ``serving``: sign-in, the gate in front of every request, certificates, the server process.
- ``reports``: static pages of finished runs and plans, without NiceGUI.

This file imports nothing: ``farflung report`` works without the extra.
"""
