from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.sql_servers import postgres


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/records.sqlite"
        return
    with postgres() as found:
        yield found
