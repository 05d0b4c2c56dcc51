"""Hybrid plans: servers of stages, their peers, and slices for helpers.

- ``stage_server``: ``StageServer``: the mode of training of a server; takes what helpers and peer servers send.
- ``slice_actions``: the slices of one step as actions for the ready loop, as the task pools decide.
- ``slices``: messages with states, tasks and answers between server and helper.
- ``slice_codecs``: the codecs of the values in these messages.
- ``helper_links``: what a server sends to its helpers.
- ``peer_servers``: servers of one stage that help each other.
- ``slice_sums``: gradients of slices, added in the job's order.
"""
