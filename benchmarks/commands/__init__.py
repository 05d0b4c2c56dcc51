"""Figures of the command line.

- ``startup``: CPU time of commands before they do their work.
"""
