"""Run folders and checkpoints, written without a run.

``written_runs``         run folders written by hand
``recorded_runs``        run folders as a broker writes them
``written_checkpoints``  checkpoints of a small GPT as runs write them
"""
