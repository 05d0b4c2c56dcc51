"""A worker process: joins a broker, offers its device, and takes part in runs. In the order in which a worker uses them:

- ``membership``: ``join``: exchanges a ticket for a certificate; every later connection proves the name.
- ``reconnect``: ``Service``: serves a broker through as many sessions as it takes.
- ``owner_limits``: what the machine's owner allows: hours, memory, bandwidth, pause.
- ``options``: ``WorkerOptions``: how the machine takes part.
- ``process``: ``Worker``: one session with a broker; routes the broker's messages to the modules below.
- ``control_session``: ``ControlSession``: messages both ways, heartbeats, lease.
- ``device_measurement``: ``MeasuredDevice``: the device that computes, and the offer to the broker.
- ``broker_queries``: ``BrokerQueries``: answers the broker's questions about device and links.
- ``links``: ``PeerLinks``, bandwidth probes, emulated links.
- ``run_part``: ``RunPart``: what training and helping have in common; ``CurrentPart``: the part that runs now.
- ``peer_frames``: ``PeerFrames``: decodes each frame of a peer, and gives its message to the part that it is for.
- ``training_run``: ``TrainingRun``: a thread with an executor, and the messages of peers for it.
- ``helper``: ``Helper``: computes slices of a stage in a hybrid plan.
- ``run_hooks``: ``WorkerHooks``: what the executor asks of the worker; ``CheckpointUpload``.
- ``data_feed``: micro-batches from this machine's files, or from the submitting process.
- ``first_states``: ``FirstStates``: states from peers, a checkpoint, or a weights file.
- ``broker_storage``: ``BrokerStorage``: states and checkpoints at the broker.
- ``retained_states``: ``RetainedStates``: states that outlive an ended attempt, and how peers fetch them.
- ``observer``: what a program around the worker observes.
- ``doctor``: diagnoses this machine.
"""
