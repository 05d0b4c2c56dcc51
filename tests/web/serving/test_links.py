"""Where a dashboard listens, and how users of this machine get further links."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.web.serving import links
from farflung.web.serving.links import Dashboard, listen, running_dashboard
from farflung.web.serving.sign_in import Role, SignIn


def test_the_url_of_a_loopback_address_has_no_tls() -> None:
    with listen("127.0.0.1:0") as listening:
        assert Dashboard.at(listening).url == f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_other_machines_are_served_with_tls() -> None:
    with listen("0.0.0.0:0") as listening:
        assert Dashboard.at(listening).url.startswith("https://")


def test_a_link_has_its_token_in_the_fragment() -> None:
    dashboard = Dashboard(url="http://127.0.0.1:7080", secret=b"s" * 32)
    address, _, token = dashboard.link(Role.VIEWER).partition("#")
    assert address == "http://127.0.0.1:7080/sign-in"
    assert SignIn(b"s" * 32, b"k").redeem(token).role is Role.VIEWER
    assert "s" * 8 not in repr(dashboard)


@pytest.mark.parametrize("address", ["7080", ":7080", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_wrong_address_is_refused(address: str) -> None:
    text = f"^the dashboard's address '{address}' is not an address: write HOST:PORT, e.g. 127.0.0.1:7080$"
    with pytest.raises(InputError, match=text):
        listen(address)


def test_a_port_in_use_is_one_line() -> None:
    with listen("127.0.0.1:0") as first:
        address = f"127.0.0.1:{first.getsockname()[1]}"
        text = f"the dashboard's address {address}: Address already in use; choose another address or port"
        with pytest.raises(InputError, match=text):
            listen(address)


def test_without_an_address_a_port_in_use_is_replaced_by_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1:0") as first:
        taken = first.getsockname()[1]
        monkeypatch.setattr(links, "DEFAULT_ADDRESS", f"127.0.0.1:{taken}")
        with listen(None) as second:
            assert second.getsockname()[0] == "127.0.0.1"
            assert second.getsockname()[1] != taken
    with listen(None) as third:
        assert third.getsockname()[1] == taken


def test_users_of_the_folder_find_the_dashboard_while_it_listens(tmp_path: Path) -> None:
    with listen("127.0.0.1:0") as listening:
        dashboard = Dashboard.at(listening)
        dashboard.save(tmp_path)
        assert (tmp_path / "dashboard.json").stat().st_mode & 0o077 == 0
        assert running_dashboard(tmp_path) == dashboard
    assert running_dashboard(tmp_path) is None
    dashboard.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_or_newer_file_is_no_dashboard_of_mine(tmp_path: Path) -> None:
    mine = Dashboard(url="http://127.0.0.1:1", secret=b"1" * 32)
    Dashboard(url="http://127.0.0.1:2", secret=b"2" * 32).save(tmp_path)
    mine.remove(tmp_path)
    assert (tmp_path / "dashboard.json").exists()
    (tmp_path / "dashboard.json").write_text("{")
    assert running_dashboard(tmp_path) is None
