"""After a sign-in, the page goes on to a page of the dashboard, and to no other site."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from farflung.web.serving.sign_in_page import sign_in_page
from tests.support.servers.browser import chromium, launched

SITE = "http://dashboard.test"


def answer(route: Any) -> None:
    posts, asks = route.request.method == "POST", route.request.url.startswith(f"{SITE}/sign-in")
    route.fulfill(status=204 if posts else 200, content_type="text/html", body=sign_in_page() if asks and not posts else "a page")


@pytest.mark.browser
def test_a_sign_in_leads_to_no_other_site() -> None:
    wanted = {
        "/run/a?x=1#y": f"{SITE}/run/a?x=1#y",
        "//evil.test/": f"{SITE}/",
        "/\t/evil.test/": f"{SITE}/",
        "/\n/evil.test/": f"{SITE}/",
        "/\\evil.test/": f"{SITE}/",
        "/.//evil.test/": f"{SITE}//evil.test/",
        "http://evil.test/": f"{SITE}/",
        "javascript:alert(1)": f"{SITE}/",
        "http://[": f"{SITE}/",
    }
    with launched(chromium()) as browser:
        page = browser.new_page()
        page.route("**/*", answer)
        found = {}
        for asked in wanted:
            page.goto("about:blank")
            page.goto(f"{SITE}/sign-in?to={quote(asked, safe='')}#token")
            page.wait_for_url(lambda url: "/sign-in" not in url)
            found[asked] = page.url
    assert found == wanted
