"""From a caller's optimizer and schedule, or the names in a job, to what a job carries.

In the order of data flow:

``given``  optimizers become rules, schedules become values
``check``  rules and the optimizers themselves take steps side by side
"""

from farflung.api.optimizers.given import Given, with_given_optimizer, with_named_optimizer

__all__ = ["Given", "with_given_optimizer", "with_named_optimizer"]
