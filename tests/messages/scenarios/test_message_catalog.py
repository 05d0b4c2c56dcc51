"""The catalog of messages is what its generator writes."""

from __future__ import annotations

import runpy
from pathlib import Path

from farflung.messages.schema import Channel
from farflung.messages.wire_form import types_on

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_the_catalog_is_current() -> None:
    catalog = runpy.run_path(str(ROOT / "scripts" / "message_catalog.py"))["catalog"]()
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    assert page == catalog, "run python scripts/message_catalog.py"
    for channel in Channel:
        for kind, found in types_on(channel).items():
            assert f"| `{kind}` | `{found.__module__.rpartition('.')[2]}.{found.__name__}` |" in page
