"""The broker process: tickets, members' sessions, runs.

- ``process``: ``Broker``: ports, certificates, the parts below.
- ``sessions``: sessions of workers: reports in, commands out.
- ``client_requests``: what clients and workers ask for: submit, status, stop, watch, transfers.
- ``run_status``: what ``farflung status`` shows of a run.
- ``idle_reasons``: why a worker is idle.
- ``run_manager``: ``Runs``: carries out the commands of ``protocol.broker``.
- ``live_run``: one run in memory.
- ``continuations``: a run that continues an earlier one.
- ``planning``: from a job and the present machines to a plan with its estimate.
- ``measuring``: fresh measurements before a plan is made.
- ``replanning``: looks for a better plan while a run goes on.
- ``preparation``: what workers are told of the next attempt.
- ``attempt_start``: where an attempt begins: retained states, checkpoint or first states.
- ``helper_assignment``: which helper helps which server.
- ``progress``: workers' reports become the run's records.
- ``stragglers``: which device or link is slow, and who is silent.
- ``links``: what is known of links, and how it is measured.
- ``records``: what is kept on disk.
"""
