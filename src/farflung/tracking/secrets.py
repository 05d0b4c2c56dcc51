"""Texts of foreign code without the secrets of this process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["one_line", "without_secrets"]

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|AUTH|CREDENTIAL|HEADERS", re.IGNORECASE)
#: The user and the password of a URL.
_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
#: Shorter values of the environment are words, not secrets.
_LEAST = 6
#: Characters of a text that is shown in one line.
_MOST = 300


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``text`` with ``***`` for each value of a secret variable of the ``environment``, and for logins in URLs."""
    values = {value for name, value in environment.items() if _SECRET.search(name) and len(value) >= _LEAST}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return _LOGIN.sub("***", text)


def one_line(error: BaseException) -> str:
    """Return the text of ``error`` in one line, without secrets, and not longer than a person reads."""
    text = " ".join(without_secrets(str(error)).split()) or type(error).__name__
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."
