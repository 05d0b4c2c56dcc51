"""Which deaths a plan survives, and what they cost.

``protection``   copies of stage states on other machines
``faults``       surviving deaths, and the throughput under given failure rates
"""
