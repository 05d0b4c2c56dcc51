"""The stages of one worker and their states.

- ``stage_runners``: the engine's runners of a stage, one per micro-batch size.
- ``local_stages``: ``LocalStages``: runners and states, from the first values to a checkpoint.
- ``delayed_update``: steps that compute with parameters one update older.
- ``loss_scale``: the factor of the loss in float16, and when it changes; ``scale_agreement``: all workers begin with the same.
- ``state_copies``: periodic copies of states on other workers.
- ``state_hashes``: hashes of states, by which copies are checked.
- ``copy_coding``: a copy on its way: pieces, coded against the previous copy.
- ``retained_stages``: the states that an ended attempt leaves.
"""
