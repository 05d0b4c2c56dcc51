"""Servers and browsers that tests start.

``served_models``  a served model in this process, with its HTTP server
``browser``        a headless Chromium
``s3_server``      a server that speaks S3
``sql_servers``    a PostgreSQL server in a temporary folder
"""
