"""Fault injection: a job on processes of this machine while members are killed, stopped, cut off or damaged.

- ``faults``: which fault hits whom and when, drawn from a seed; the verdict on a run that suffered them. Pure.
- ``local_cluster``: ``LocalCluster``, a broker and workers as processes, started by the same commands that people type.
- ``kills``: runs a job on a cluster while processes are killed, and times each recovery.
- ``wild_cluster``: a cluster that can also suffer stops, cut or corrupted connections, full disks and clock jumps.
- ``wires``: the connections that can be cut or corrupted.
- ``saboteur``: starts a worker or broker that suffers a fault at a named point of its work.
- ``trial``: ``run_trial``, what ``farflung chaos`` runs: the same job undisturbed and under faults, compared.
"""
