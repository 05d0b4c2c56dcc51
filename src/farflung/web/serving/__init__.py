"""The server of the dashboard.

- ``links``: the links with which people sign in, and the file that lets ``farflung web`` make new ones.
- ``sign_in``: one-time tokens and cookies.
- ``rights``: what a signed-in user sees and may do.
- ``gate``: what each request passes before any page sees it: cookie, origin, headers.
- ``sign_in_page``: the page for people without a cookie.
- ``certificates``: TLS where other machines can reach the dashboard.
- ``downloads``: exports of checkpoints.
- ``start``: starting a server for a broker, by a broker, or for folders of runs.
- ``server``: the process that serves the pages.
"""
