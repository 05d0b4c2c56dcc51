"""Commands as processes, and the job files for them.

``command_processes``  commands as processes, with their output line by line
``pseudo_terminal``    commands on a pseudo-terminal
``error_lines``        calls that end in one line of error
``job_files``          the job that most tests train
``planned_jobs``       the job of the tests of ``farflung plan``
``own_models``         jobs with a ``model.py`` of the user, and processes for them
``launched_clusters``  clusters started from files
``patient_cluster``    processes whose broker expires leases late
"""
