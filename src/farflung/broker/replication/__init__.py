"""Several brokers of one cluster: one leads, the others take over when its lease in a database expires.

- ``database``: ``RecordsDatabase``: the tables in SQLite, PostgreSQL or any other SQL database.
- ``folder_copy``: ``FolderCopy``: what has changed in the leader's folder, as rows of the database.
- ``folder_replay``: ``FolderReplay``: the folder from the rows, on a standby.
- ``leadership``: ``Leadership``: who leads, and the lease that the leader renews.
- ``lease_watch``: ``LeaseWatch``: the end of a leader whose lease is over.
"""
