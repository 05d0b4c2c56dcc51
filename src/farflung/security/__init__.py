"""Who may join and who sends: join tickets, certificates, pinned first contact.

- ``tickets``: join tickets. ``ticket_argument``: a ticket as a user writes it.
- ``certificates``: keys and certificates. ``pinning``: the first contact with a broker.
- ``authority``: issues certificates. ``ticket_book``, ``name_book``: issued tickets and names; ``book``: their files.
- ``audit_log``: who did what. ``files``: private files. ``user_home``: the user's folder.

This module exports what members need. The broker imports ``authority``, ``ticket_book`` and ``name_book``.
"""

from farflung.security.certificates import (
    Caller,
    Credentials,
    certificate_fingerprint,
    kept_key,
    key_fingerprint,
    make_request,
    new_key,
    read_caller,
    tls_name,
)
from farflung.security.pinning import fetch_server_certificate, split_address
from farflung.security.tickets import Ticket

__all__ = [
    "Caller",
    "Credentials",
    "Ticket",
    "certificate_fingerprint",
    "fetch_server_certificate",
    "kept_key",
    "key_fingerprint",
    "make_request",
    "new_key",
    "read_caller",
    "split_address",
    "tls_name",
]
