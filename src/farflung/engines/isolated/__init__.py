"""An engine in processes of their own: a worker never runs an operator of a job, and a crash ends an attempt, not the worker.

In the order in which a call passes through:

- ``engine``: ``IsolatedEngine`` is a worker's engine; ``AttemptEngine`` is that of one attempt, with its own process.
- ``runner``: a ``StageRunner`` of it; checks what comes back against the graph.
- ``exchange``: one message and its answer at a time.
- ``process``: starts and ends processes, waits for answers, says how a process died.
- ``control``: the messages. ``arena``: the shared memory for arrays. ``encoded``: payloads in it.
- ``zygote``: the process that forks, and the guard of each process that computes.
- ``lockdown``: what that process gives up (``landlock``, ``seccomp``, namespaces, limits).
- ``service``: answers the calls with another engine.
"""

from farflung.engines.isolated.engine import AttemptEngine, IsolatedEngine, start_attempt
from farflung.engines.isolated.lockdown import PROTECTIONS
from farflung.engines.isolated.process import Zygote

__all__ = ["PROTECTIONS", "AttemptEngine", "IsolatedEngine", "Zygote", "start_attempt"]
