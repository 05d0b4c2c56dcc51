"""Between items of messages and the types that the program uses.

- ``retained_states``: retained states and decisions about steps.
- ``step_reports``: ``StepReport``: what a worker reports after a step; trace spans.
- ``link_reports``: what training traffic says about links.
- ``probes``: the result of a bandwidth probe.
- ``failed_batches``: the batch on which a computation failed.
- ``relays``: relays, the pairs that they serve, what they carried.
"""
