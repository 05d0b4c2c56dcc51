"""Who may join and who sends: join tickets, certificates, pinned first contact.

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
