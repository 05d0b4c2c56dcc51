"""The attempts of a run, in the order of their lives.

- ``command_executor``: ``CommandExecutor``: passes each command of the machine to the parts below.
- ``planner``: ``AttemptPlanner``: measures, plans, and chooses the step and the states with which the attempt begins.
- ``preparation``: what workers receive before the attempt begins.
- ``launcher``: ``AttemptLauncher``: workers prepare and begin; a loss ends the attempt.
- ``attempt_deadlines``: ``AttemptDeadlines``: whoever is late in an attempt is left out of it.
- ``helper_assignment``: ``HelperAssignment``: which helper helps which server.
- ``replanner``: ``Replanner``: searches for a better plan while the run trains.
- ``retained_states``: ``RetainedStates``: states that workers retain after an attempt.
- ``finisher``: ``RunFinisher``: the result of the run.
"""
