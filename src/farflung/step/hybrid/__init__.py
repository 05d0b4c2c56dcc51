"""Hybrid plans: servers of stages, their peers, and slices for helpers.

- ``stage_server``: a server: computes slices itself and through helpers, as the task pool says.
- ``peer_servers``: servers of one stage that help each other.
- ``slices``: states, tasks and answers between server and helper.
"""
