"""The task pool of a stage server, in the order in which an event passes through it.

- ``pool_events``: events and commands.
- ``pool_settings``: ``PoolSettings``: room and patience, from plan and job.
- ``task_pool``: ``TaskPool``: passes events to the parts below.
- ``pool_state``: slices and devices.
- ``answer_times``: ``AnswerTimes``: how long helpers take, and how patient the server is (``Patience``).
- ``task_choice``: ``TaskChoice``: which device computes what.
- ``ordered_items``: ``InOrder``: the order in which results are added.
"""
