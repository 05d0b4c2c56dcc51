"""One worker's part in the optimizer steps of a run. docs/architecture.md, "Life of a micro-batch", has the picture.

- ``run_setup``: ``RunSetup``: what every worker knows of a run; ``RunHooks``: what a step asks of its surroundings.
- ``plugin_check``: whether this process has the codecs, strategy and planner of a job.
- ``executor``: ``Executor``: steps, evaluations and checkpoints of one worker, on its compute thread.
- ``context``: ``StepContext``: what the parts share.
- ``router``: frames that arrive, to the part that takes them.
- ``run_position``: how far this worker is, and which batches of the submitter may wait.
- ``inbox``: where received values wait for the compute thread.
- ``optimizer_step``: ``OptimizerStep``: the parts of one step, in order.
- ``ready_loop``: waits for an action whose inputs are here, computes it, sends its results.
- ``actions``: inputs, result and computation of an action.
- ``failed_batch``: ``blaming``: errors of a computation name the batch.
- ``pipeline``: forwards and backwards in the order of a schedule; ``TrainingMode``, the protocol of modes of training.
- ``zeroth_order``: a mode with two finite-difference probes in place of a backward.
- ``hybrid``: a mode with servers and helpers.
- ``transfer``: values and messages on their way between workers.
- ``reduction``: sums over replicas.
- ``sync``: replicas under a sync strategy.
- ``tied_gradients``: gradients of parameters that several stages share.
- ``gradient_check``: norm and finiteness of a step's gradients.
- ``step_vote``: losses go to the leader, its verdict to everyone.
- ``two_phase_commit``: a step is prepared, then applied.
- ``verification``: digests of the own work, and work of other replicas that is computed again.
- ``stages``: the stages of this worker, with their states and copies of states.
- ``evaluation``: evaluation and text generation.
- ``step_meter``: where the wall-clock time of a step goes.
"""
