"""Commands that plan without running anything.

- ``plan``: a plan for a job and a topology, or the plan of a run.
- ``run_plan``: what ``plan`` reads from the folder of a run.
- ``simulate``: a plan in virtual time.
- ``graph``: the model of a job as a graph of operators.
- ``inputs``: what these commands read: a topology, a plan document, a time span, and the files of a job.
"""
