"""Helpers of hybrid plans.

- ``helper_pool``: which unreliable members help which run.
- ``expected_helpers``: where the helpers of a new plan will help, and how fast its servers are with them.
- ``server_choice``: which server of the run a helper joins, and which helper moves to another stage.
"""
