"""Decisions as pure state machines: events in, commands out; no clock, no socket, no file.

The broker, in the order in which an event passes through it:

- ``events``: events and commands; ``helper_events``: those about helpers.
- ``broker``: ``BrokerMachine``: passes events to the parts below.
- ``members``, ``runs``: one member, one run; ``cluster_state``: ``ClusterState``: all of them.
- ``membership``: members join, leave and are lost.
- ``run_queue``: which waiting run gets which members; ``candidates``: members that a run can use.
- ``attempts``: an attempt from its plan to its end.
- ``conduct``: members that misbehave or fail; ``standing``: ``Standing``: what that costs them.
- ``hybrid``: which unreliable members help which run, and which server of the run.
- ``retained_states``: which retained states a run continues from.

What the broker observes:

- ``leases``: ``Leases``: which members have been silent for too long.
- ``hosts``: workers that share processors.
- ``probe_pairing``: which devices probe each other, in rounds.
- ``straggler_detector``: ``StragglerDetector``: slow devices and links, silent workers.
- ``deadlines``: ``Deadlines``: which phase of which run lasts too long.
- ``replan_timer``: ``ReplanTimer``: when to search for a better plan.

For a stage server:

- ``pool``: the task pool: which helper computes which slice.
"""
