"""Tokens work once and for an hour; cookies are signed with another key; neither is taken for the other."""

from __future__ import annotations

import pytest

from farflung.errors import SecurityError
from farflung.units import Seconds
from farflung.web.serving.sign_in import Role, SignIn, make_token

SECRET, KEY = b"s" * 32, b"k" * 32


class Moment:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_signs_in_once() -> None:
    sign_in = SignIn(SECRET, KEY, Moment())
    token = sign_in.token(Role.VIEWER)
    assert sign_in.redeem(token).role is Role.VIEWER
    with pytest.raises(
        SecurityError,
        match="a sign-in link works once, and this link was used already: run farflung web",
    ):
        sign_in.redeem(token)


def test_a_token_expires() -> None:
    moment = Moment()
    sign_in = SignIn(SECRET, KEY, moment)
    token = make_token(SECRET, now=moment.now, validity=Seconds(10.0))
    moment.now += 11
    with pytest.raises(SecurityError, match="this sign-in link has expired: run farflung web"):
        sign_in.redeem(token)


@pytest.mark.parametrize(
    "change", [lambda t: t[:-2] + "AA", lambda t: "A" + t[1:], lambda t: "", lambda t: "é.é", lambda t: t * 90]
)
def test_a_changed_token_is_refused(change: object) -> None:
    sign_in = SignIn(SECRET, KEY, Moment())
    assert callable(change)
    with pytest.raises(SecurityError, match="this sign-in link is not of this dashboard, or the dashboard has restarted"):
        sign_in.redeem(change(sign_in.token(Role.OWNER)))


def test_a_token_of_an_earlier_start_is_refused_and_its_cookie_is_not() -> None:
    moment = Moment()
    before, after = SignIn(b"1" * 32, KEY, moment), SignIn(b"2" * 32, KEY, moment)
    cookie = before.cookie(before.redeem(before.token(Role.OWNER)))
    found = after.session(cookie)
    assert found is not None
    assert found.role is Role.OWNER
    with pytest.raises(SecurityError):
        after.redeem(before.token(Role.OWNER))


def test_cookies_expire_and_are_no_tokens() -> None:
    moment = Moment()
    sign_in = SignIn(KEY, KEY, moment)  # even with one key for both
    cookie = sign_in.cookie(sign_in.begin(Role.OWNER))
    assert sign_in.session(sign_in.token(Role.OWNER)) is None
    with pytest.raises(SecurityError):
        sign_in.redeem(cookie)
    assert sign_in.session(cookie) is not None
    moment.now += 8 * 86400
    assert sign_in.session(cookie) is None
