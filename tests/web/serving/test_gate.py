"""Nothing passes without a cookie; nothing that acts passes from another origin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from farflung.errors import SecurityError
from farflung.web.serving.gate import POLICY, Gate
from farflung.web.serving.rights import Rights
from farflung.web.serving.sign_in import Role, SignIn

HOST = "127.0.0.1:7080"
ORIGIN = f"http://{HOST}"


class Answer:
    def __init__(self, sent: list[MutableMapping[str, Any]], passed: list[Any]) -> None:
        self.sent, self.passed = sent, passed
        self.status = sent[0].get("status") if sent else None
        self.headers = {name.decode(): value.decode() for name, value in sent[0].get("headers", [])} if sent else {}
        self.text = b"".join(one.get("body", b"") for one in sent).decode()


class Client:
    """Calls the gate; ``passed`` lists who was let through to the pages."""

    def __init__(self, *, secure: bool = False, open_ticket: Any = None) -> None:
        self.sign_in = SignIn(b"s" * 32, b"k" * 32)
        self.rights = Rights(self.sign_in, lambda: None, open_ticket)
        self.gate = Gate(self.page, self.rights, secure=secure)
        self.passed: list[Any] = []

    async def page(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(scope["state"]["signed_in"])
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"public")]})
            await send({"type": "http.response.body", "body": b"page"})

    def cookie(self, role: Role = Role.OWNER) -> str:
        return f"other=1; farflung-7080={self.sign_in.cookie(self.sign_in.begin(role))}"

    def call(self, path: str, method: str = "GET", *, kind: str = "http", body: bytes | None = b"", **headers: str) -> Answer:
        """``body``: ``None`` never comes."""
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            if body is None:
                await asyncio.Event().wait()
            return {"type": "http.request" if kind == "http" else "websocket.connect", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        pairs = [(name.encode(), value.encode()) for name, value in ({"host": HOST} | headers).items()]
        scope = {"type": kind, "path": path, "query_string": b"", "headers": pairs} | (
            {"method": method} if kind == "http" else {}
        )
        before = len(self.passed)
        asyncio.run(self.gate(scope, receive, send))
        return Answer(sent, self.passed[before:])

    def post(self, content: object, origin: str = ORIGIN) -> Answer:
        return self.call("/sign-in", "POST", body=json.dumps(content).encode(), origin=origin)


def test_a_page_without_a_cookie_leads_to_the_sign_in_page_and_back() -> None:
    found = Client().call("/run/a")
    assert (found.status, found.headers["location"], found.passed) == (303, "/sign-in?to=%2Frun%2Fa", [])


@pytest.mark.parametrize("path", ["/_nicegui/3.18.0/static/vue.js", "/_nicegui_ws/socket.io/"])
def test_nothing_else_is_served_without_a_cookie(path: str) -> None:
    found = Client().call(path)
    assert (found.status, found.passed) == (401, [])


def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    client = Client()
    found = client.post({"token": client.sign_in.token(Role.VIEWER)})
    cookie = found.headers["set-cookie"]
    assert found.status == 204
    assert "; HttpOnly; SameSite=Strict" in cookie
    assert "; Secure" not in cookie
    page = client.call("/", cookie=cookie.partition(";")[0])
    assert [one.role for one in page.passed] == [Role.VIEWER]
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["x-frame-options"] == "DENY"


def test_the_cookie_needs_tls_where_the_dashboard_has_it() -> None:
    client = Client(secure=True)
    found = client.post({"token": client.sign_in.token(Role.OWNER)}, origin=f"https://{HOST}")
    assert found.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("origin", ["http://evil.example", f"https://{HOST}", "null", f"{ORIGIN}.evil.example"])
def test_signing_in_and_acting_from_another_origin_is_refused(origin: str) -> None:
    client = Client()
    token = client.sign_in.token(Role.OWNER)
    assert client.post({"token": token}, origin=origin).status == 403
    assert client.post({"token": token}).status == 204, "the token was not used up"
    acted = client.call("/_nicegui_ws/socket.io/", "POST", cookie=client.cookie(), origin=origin)
    assert (acted.status, acted.passed) == (403, [])
    assert client.call("/sign-out", "POST", cookie=client.cookie(), origin=origin).status == 403


def test_a_websocket_needs_the_cookie_and_the_origin() -> None:
    client = Client()
    for headers in (
        {},
        {"origin": ORIGIN},
        {"cookie": client.cookie()},
        {"cookie": client.cookie(), "origin": "http://evil.example"},
    ):
        found = client.call("/_nicegui_ws/socket.io/", kind="websocket", **headers)
        assert (found.sent, found.passed) == ([{"type": "websocket.close", "code": 4403}], [])
    found = client.call("/_nicegui_ws/socket.io/", kind="websocket", cookie=client.cookie(), origin=ORIGIN)
    assert [one.role for one in found.passed] == [Role.OWNER]


def test_a_cookie_of_another_key_is_none() -> None:
    client, other = Client(), SignIn(b"s" * 32, b"x" * 32)
    cookie = f"farflung-7080={other.cookie(other.begin(Role.OWNER))}"
    assert client.call("/", cookie=cookie).status == 303


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 16_000], ids=len)
def test_a_malformed_sign_in_is_refused(body: bytes) -> None:
    assert Client().call("/sign-in", "POST", body=body, origin=ORIGIN).status in (400, 403)


def test_a_long_sign_in_is_refused() -> None:
    found = Client().call("/sign-in", "POST", body=b"x" * 20_000, origin=ORIGIN)
    assert (found.status, found.text) == (403, "a sign-in has at most 16384 bytes")


def test_a_sign_in_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.web.serving.gate.REQUEST_SECONDS", 0.05)
    found = Client().call("/sign-in", "POST", body=None, origin=ORIGIN)
    assert (found.status, found.text) == (408, "the sign-in did not come in time")


class TicketClient:
    """A client of somebody who submitted the run a."""

    closed = False
    asked = 0

    def status(self) -> dict[str, object]:
        self.asked += 1
        return {"runs": [{"run": "a", "folder": "/x"}, {"run": "b", "folder": ""}]}

    def close(self) -> None:
        self.closed = True


def test_a_ticket_sees_its_own_runs_until_it_signs_out() -> None:
    made = TicketClient()

    def open_ticket(text: str) -> Any:
        if text != "farflung1-good":
            raise SecurityError("the ticket is mistyped")
        return made, False

    client = Client(open_ticket=open_ticket)
    assert client.post({"ticket": "farflung1-bad"}).text == "the ticket is mistyped"
    cookie = client.post({"ticket": "farflung1-good"}).headers["set-cookie"].partition(";")[0]
    (user,) = client.call("/", cookie=cookie).passed
    assert (user.role, user.runs(), user.sees_all, user.owns_broker) == (Role.TICKET, frozenset({"a"}), False, False)
    assert client.call("/sign-out", "POST", cookie=cookie, origin=ORIGIN).status == 204
    assert made.closed
    assert client.call("/", cookie=cookie).status == 303


def test_run_folders_without_a_broker_take_no_tickets() -> None:
    found = Client().post({"ticket": "farflung1-x"})
    assert found.text == "this dashboard has no broker, so a ticket can't sign in: use the link that farflung web printed"


def test_an_owner_ticket_has_all_rights() -> None:
    client = Client(open_ticket=lambda text: (TicketClient(), True))
    cookie = client.post({"ticket": "farflung1-owner"}).headers["set-cookie"].partition(";")[0]
    (user,) = client.call("/", cookie=cookie).passed
    assert (user.role, user.sees_all, user.owns_broker, user.client is not None) == (Role.TICKET, True, True, True)


def test_who_signs_out_has_no_valid_cookie_any_more() -> None:
    client = Client()
    mine, other = client.cookie(), client.cookie()
    assert client.call("/", cookie=mine).status == 200
    assert client.call("/sign-out", "POST", cookie=mine, origin=ORIGIN).status == 204
    assert client.call("/", cookie=mine).status == 303
    assert client.call("/", cookie=other).status == 200


def test_only_so_many_tickets_are_signed_in_and_the_broker_is_asked_about_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TicketClient] = []
    now = [0.0]
    monkeypatch.setattr("farflung.web.serving.rights.monotonic", lambda: now[0])

    def open_ticket(text: str) -> Any:
        made.append(TicketClient())
        return made[-1], False

    client = Client(open_ticket=open_ticket)
    cookies = []
    for _ in range(65):
        now[0] += 1.0
        cookies.append(client.post({"ticket": "farflung1-good"}).headers["set-cookie"].partition(";")[0])
    assert [one.closed for one in made] == [True] + [False] * 64
    assert client.call("/", cookie=cookies[0]).status == 303
    assert client.call("/", cookie=cookies[1]).status == 200
    asked = [one.asked for one in made]
    now[0] += 20.0
    client.rights.refresh()
    assert [after.asked - before for after, before in zip(made, asked, strict=True)] == [0, 1] + [0] * 53 + [1] * 10


def test_the_owner_acts_through_the_client_that_the_dashboard_has_now() -> None:
    """A page stays open while the broker restarts."""
    clients: list[Any] = ["first"]
    rights = Rights(SignIn(b"s" * 32, b"k" * 32), lambda: clients[-1], None)
    user = rights.of(rights.sign_ins.begin(Role.OWNER))
    assert user is not None
    assert user.client == "first"
    clients.append("second")
    assert user.client == "second"
