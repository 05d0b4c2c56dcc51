"""A worker process: joins a broker, offers its device and runs its part of runs.

- ``membership``: exchanges a ticket for a certificate; every later connection proves the name.
- ``reconnect``: ``Service``: joins again when the broker is back.
- ``owner_limits``: what the machine's owner allows: hours, memory, bandwidth, pause.
- ``options``: ``WorkerOptions``: how this machine takes part.
- ``process``: ``Worker``: the session with the broker.
- ``device_measurement``: which device the worker computes on, and what a warm-up of it finds.
- ``training_run``: ``Work``: one run on this worker: a thread with an executor.
- ``helper``: a helper's part in a hybrid plan.
- ``data_feed``: batches from this machine's files.
- ``weights_file``: first states from a weights file on this machine.
- ``retained_states``: states that outlive an ended attempt, and how others get them.
- ``state_fetch``: fetches the states that a new part begins with from other workers.
- ``link_probe``: measures one direction of a link.
- ``link_shaping``: emulated links on one machine.
- ``doctor``: diagnoses this machine.
"""
