"""What pages and dashboards of the repository contain.

``documented_commands``  the commands that the documentation shows
``thread_table``         the table of threads, and the threads that outlive their owners
``grafana``              the Grafana dashboard
"""
