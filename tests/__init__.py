"""Tests of farflung.

Folders mirror ``src/farflung``: ``tests/broker/links/test_relays.py`` tests ``farflung/broker/links/relays.py``.
``end_to_end`` has whole runs, named after what happens in them. ``documents`` checks the pages, and ``packaging`` what is
installed and released. ``support`` has the code that several test modules share. Only tests import it, and test modules
never import each other.
"""
