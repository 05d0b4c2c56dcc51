"""A plan and its estimate as text for people.

``summary``            one line, the answer in a few lines, a table of stages
``estimate_tables``    the whole estimate as tables
``decision_report``    what ``auto`` chose of the codecs, and why
``helper_traffic``     parameters on their way to helpers
"""
