"""Data behind URLs: the bits of local files, fetched once, and one clear error for what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.data import Source, absent_data, open_source
from farflung.data.fetching import Fetch
from farflung.data.objects import _Store
from farflung.errors import DataError, Stopped
from farflung.job.spec import DataSpec
from tests.support.models.tables import NEEDS_DATASETS, write_rows
from tests.support.servers.s3_server import s3_server

obstore = pytest.importorskip("obstore")
from obstore.store import from_url  # noqa: E402


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        (tmp_path / "objects").mkdir()
        yield (tmp_path / "objects").as_uri()
        return
    yield from s3_server(tmp_path)


def upload(url: str, name: str, content: bytes) -> None:
    obstore.put(from_url(url), name, content)


def opened(path: str, place: Path, **fields: Any) -> Source:
    spec = DataSpec.model_validate({"kind": "text", "path": path, "sequence": 8, "eval_fraction": 0.0} | fields)
    return open_source(spec, place, cache=place / "cache")


def test_a_folder_of_texts(url: str, tmp_path: Path) -> None:
    upload(url, "a/one.txt", b"0123456789")
    upload(url, "two.txt", b"abcdefghi")
    upload(url, "other.bin", b"left out")
    found = opened(url, tmp_path, glob="**/*.txt")
    assert found.size == 2
    assert bytes(found.batch(np.array([1]), ["inputs"])["inputs"][0].astype(np.uint8)) == b"89abcdef"
    (tmp_path / "copy" / "a").mkdir(parents=True)
    (tmp_path / "copy" / "a" / "one.txt").write_bytes(b"0123456789")
    (tmp_path / "copy" / "two.txt").write_bytes(b"abcdefghi")
    assert opened("copy", tmp_path).fingerprint() == found.fingerprint(), "a machine with the files may read them instead"
    assert not [*(tmp_path / "cache").rglob("other.bin")], "what the job does not read is not fetched"


def test_a_folder_with_a_dot_in_its_name(url: str, tmp_path: Path) -> None:
    upload(url, "v1.0/one.txt", b"0123456789")
    assert opened(f"{url}/v1.0", tmp_path).size == 1


def test_a_changed_object_is_fetched_again(url: str, tmp_path: Path) -> None:
    upload(url, "one.txt", b"0123456789")
    first = opened(f"{url}/one.txt", tmp_path)
    before = first.fingerprint()
    upload(url, "one.txt", b"9876543210")
    assert opened(f"{url}/one.txt", tmp_path).fingerprint() != before


def test_empty_objects_that_mark_folders_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles of object stores make them. A file system can't have one beside the folder, so the listing is made here."""
    (tmp_path / "objects" / "a").mkdir(parents=True)
    (tmp_path / "objects" / "a" / "one.txt").write_bytes(b"0123456789")
    real = obstore.list
    markers = [{"path": name, "size": 0, "e_tag": "0", "last_modified": None} for name in ("", "a")]
    monkeypatch.setattr(obstore, "list", lambda store: [*real(store), markers])
    assert opened((tmp_path / "objects").as_uri(), tmp_path, glob="**").size == 1


def test_an_object_that_changes_between_listing_and_reading_is_named(url: str) -> None:
    upload(url, "one.txt", b"0123456789")
    store = _Store(url)
    (item,) = store.objects()
    upload(url, "one.txt", b"9876543210")
    with pytest.raises(DataError, match=rf"data '{url}': one.txt changed while it was read: start the run again"):
        list(store.pieces(item))


def test_a_fetch_is_counted_and_ends_with_its_run(url: str, tmp_path: Path) -> None:
    upload(url, "one.txt", b"0123456789")

    def fetch(one: Fetch) -> int:
        one.use()
        return opened(url, tmp_path).size

    over, whole = Fetch(), Fetch()
    over.end(Stopped("over"))
    with pytest.raises(Stopped, match=r"^over$"):
        copy_context().run(fetch, over)
    assert not [*(tmp_path / "cache").rglob("one.txt")]
    assert copy_context().run(fetch, whole) == 1
    assert whole.nbytes == 10
    assert copy_context().run(fetch, whole) == 1
    assert whole.nbytes == 10, "what is here is not fetched again"


@NEEDS_DATASETS
def test_a_table(url: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"x": 0.5 * i, "y": i} for i in range(4)])
    upload(url, "rows.jsonl", (tmp_path / "rows.jsonl").read_bytes())
    found = opened(url, tmp_path, kind="dataset").batch(np.array([3, 1]), ["x", "y"])
    assert (found["x"].tolist(), found["y"].tolist()) == ([1.5, 0.5], [3, 1])


def test_what_is_missing(url: str, tmp_path: Path) -> None:
    for path in (url, f"{url}/one.txt"):
        with pytest.raises(DataError, match=rf"data '{path}' is not in its store, or an empty folder: check bucket and name"):
            opened(path, tmp_path).check()
    upload(url, "one.txt", b"0123456789")
    with pytest.raises(DataError, match=r"data '.*' has no file that matches '\*.csv' on this machine"):
        opened(url, tmp_path, glob="*.csv").check()


def test_jobs_of_others_make_no_machine_fetch_files(tmp_path: Path) -> None:
    spec = DataSpec(kind="text", path="s3://bucket/folder")
    with pytest.raises(DataError, match=r"is a URL, and jobs may not make this machine fetch files: copy the files"):
        open_source(spec, tmp_path, cache=tmp_path, confined=True).check()
    assert absent_data(spec, [tmp_path]) == ""
