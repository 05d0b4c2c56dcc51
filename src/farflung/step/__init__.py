"""One worker's part in the optimizer steps of a run.

- ``run_setup``: ``RunSetup``: what every worker knows of a run; ``RunHooks``: what a step asks of its surroundings.
- ``plugin_check``: whether this process has the codecs, strategy and planner of a job.
- ``stage_runners``: the engine's runners of a stage, one per micro-batch size.
- ``executor``: ``Executor``: takes ready actions and computes them, step after step.
- ``inbox``: where received values wait for the compute thread.
- ``value_transfer``: key, codec and route of every value that leaves or arrives.
- ``outbox``: one sender thread per peer and urgency: encodes and posts frames.
- ``frame_log``: the spans of frames in a worker's trace.
- ``sample_cache``: what both ends of a link cached of samples that come again.
- ``codec_gauge``: time and error of codecs on each link.
- ``reduction``: sums over replicas.
- ``sync``: replicas under a sync strategy.
- ``hybrid``: servers and helpers of a hybrid plan.
- ``step_vote``: losses and health of a step: whether the step may be applied.
- ``two_phase_commit``: a step is prepared, then applied.
- ``delayed_update``: steps that compute with parameters one update older.
- ``zeroth_order``: steps without a backward.
- ``evaluation``: evaluation and text generation through the training stages.
- ``state_copies``: copies of stage states on other workers.
- ``copy_coding``: a copy on its way: pieces, coded against the previous copy.
- ``step_meter``: where the wall-clock time of a step goes.
"""
