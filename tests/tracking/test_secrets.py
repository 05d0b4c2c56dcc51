"""No secret of the environment, and no login of a URL, gets into a text."""

from __future__ import annotations

from farflung.tracking.secrets import one_line, without_secrets

ENVIRONMENT = {"WANDB_API_KEY": "abcdef0123", "MLFLOW_TRACKING_PASSWORD": "hunter2!", "HOME": "/home/me", "X_TOKEN": "ab"}


def test_values_of_secret_variables_are_hidden() -> None:
    text = "401: key abcdef0123 of /home/me, password hunter2!, about"
    assert without_secrets(text, ENVIRONMENT) == "401: key *** of /home/me, password ***, about"


def test_logins_of_urls_are_hidden() -> None:
    assert without_secrets("no answer of http://me:pass@host:5000/api", {}) == "no answer of http://***@host:5000/api"
    assert without_secrets("see https://example.org/a@b", {}) == "see https://example.org/a@b"


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert one_line(OSError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(OSError("x" * 1000))) == 300
