"""WebDataset shards: which samples they have, what is read of them, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.data import Loader, Source, open_source
from farflung.errors import DataError
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec


def write_shard(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def array(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(values))
    return stream.getvalue()


def image(color: tuple[int, int, int]) -> bytes:
    picture = pytest.importorskip("PIL.Image").new("RGB", (8, 8), color)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def samples(first: int, count: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for index in range(first, first + count):
        found |= {f"a/{index:03}.x.npy": array([index, 0.5]), f"a/{index:03}.cls": str(index % 3).encode()}
    return found


def opened(place: Path, **fields: Any) -> Source:
    spec = DataSpec.model_validate({"kind": "dataset", "path": "shards", "sequence": 16, "eval_fraction": 0.0} | fields)
    return open_source(spec, place, cache=place / "cache", confined=True)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shards" / "0.tar", samples(0, 4))
    write_shard(tmp_path / "shards" / "1.tar", {"note": b"no sample", "a/.hidden": b"", **samples(4, 3)})
    return tmp_path


def test_each_suffix_is_a_column(shards: Path) -> None:
    source = opened(shards)
    assert source.size == 7
    found = source.batch(np.array([6, 0, 4]), ["x.npy", "cls"])
    assert found["x.npy"].tolist() == [[6.0, 0.5], [0.0, 0.5], [4.0, 0.5]]
    assert found["cls"].tolist() == [0, 0, 1]
    assert source.spec("cls") == TensorSpec(dtype="int64", shape=())
    with pytest.raises(DataError, match=r"data 'shards' has no column 'jpg': it has x.npy, cls"):
        source.batch(np.array([0]), ["jpg"])


def test_the_order_of_samples_depends_on_seed_and_step_alone(shards: Path) -> None:
    data = DataSpec(kind="dataset", path="shards", eval_fraction=0.0, fields={"x": "x.npy", "label": "cls"})
    places = {"x": TensorSpec(dtype="float32", shape=(2, 2)), "label": TensorSpec(dtype="int64", shape=(2,))}

    def run(steps: range) -> list[Any]:
        loader = Loader(data, open_source(data, shards, cache=shards / "cache"), places, [2, 2], seed=3)
        return [loader.batch(step, index)["x"].tolist() for step in steps for index in (0, 1)]

    whole = run(range(9))
    assert run(range(5, 9)) == whole[10:], "a run that resumes reads the same samples"
    seen = [row[0] for batch in whole[:-1] for row in batch]
    assert sorted(seen[:7]) == sorted(seen[7:14]) == [0, 1, 2, 3, 4, 5, 6], "each sample once in an epoch"


def test_images_and_texts(tmp_path: Path) -> None:
    colors = [(255, 0, 0), (0, 0, 255)]
    write_shard(tmp_path / "shards" / "0.tar", {f"{i}.PNG": image(color) for i, color in enumerate(colors)})
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    found = opened(tmp_path, size=4, image=plain).batch(np.arange(2), ["png"])["png"]
    assert found.shape == (2, 3, 4, 4)
    assert found[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 0, 1]]
    write_shard(tmp_path / "texts" / "0.tar", {f"{i}.txt": b"hello world, this is text" for i in range(3)})
    source = opened(tmp_path, path="texts", text="txt")
    assert bytes(source.batch(np.array([0]), ["inputs"])["inputs"][0].astype(np.uint8)) == b"hello world, thi"


def test_a_place_in_the_json_of_a_sample_is_no_number(shards: Path) -> None:
    write_shard(shards / "shards" / "0.tar", {"0.json": json.dumps({"a": 1}).encode()})
    (shards / "shards" / "1.tar").unlink()
    with pytest.raises(DataError, match="the column 'json' holds dict, not numbers"):
        opened(shards).spec("json")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def _header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1024 + 10] ^= 0xFF  # in the second header, so the library would end there in silence
    path.write_bytes(content)


def _first(path: Path) -> None:
    path.write_bytes(b"no tar" * 300)


def _negative(path: Path) -> None:
    """The third file has -1024 bytes, so the second header would be read again, without an end."""
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2]
    content = bytearray(path.read_bytes())
    header = content[third.offset : third.offset + 512]
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    content[third.offset : third.offset + 512] = header
    path.write_bytes(content)


def _without_end(path: Path) -> None:
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content + bytes(-len(content) % 512))


def _emptied_header(path: Path) -> None:
    """One block of zeros, and further files behind it."""
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    content = path.read_bytes()
    path.write_bytes(content[: last.offset] + bytes(512) + content[last.offset + 512 :])


@pytest.mark.parametrize("damage", [_cut, _header, _first, _negative, _without_end, _emptied_header])
def test_a_damaged_shard_is_named(damage: Any, shards: Path) -> None:
    damage(shards / "shards" / "1.tar")
    with pytest.raises(DataError, match=r"data 'shards': 1.tar is damaged: write or copy the shard again"):
        opened(shards).check()


def _promise() -> bytes:
    """A file of numbers whose header names far more than follow."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    return stream.getvalue() + bytes(8)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"0.pkl": pickle.dumps(1)}, r"no decoder for files .pkl: known are npy, json, .*pickled files are never read"),
        (
            {"0.npy": array(np.array([{}], object))},
            r"a file .npy in 0.tar can't be read: Object arrays cannot be loaded when allow",
        ),
        (
            {"0.npy": _promise()},
            r"a file .npy in 0.tar can't be read: its header promises \[1099511627776\] values of float32, and 8",
        ),
        ({"0.npy": b"PK" + bytes(40)}, r"a file .npy in 0.tar can't be read: the magic string is not correct"),
        ({"0.json": b"[" * 200_000}, r"a file .json in 0.tar can't be read: maximum recursion depth exceeded"),
        ({"0.cls": b"one"}, r"a file .cls in 0.tar can't be read: invalid literal for int"),
        ({"0.cls": b"1", "1.npy": b""}, r"a sample of 0.tar lacks, or alone has, a file .cls: make samples equal"),
        ({"0.cls": b"1", "0.CLS": b"1"}, r"0.tar has 0.CLS twice: write the shard again"),
        ({"README": b""}, r"its shards have no sample: write files such as 000.jpg and 000.cls into them"),
    ],
)
def test_samples_that_are_refused(files: Mapping[str, bytes], text: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "shards" / "0.tar", files)
    with pytest.raises(DataError, match=text):
        opened(tmp_path).spec(next(iter(files)).partition(".")[2])


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "shards" / "0.tar"
    write_shard(path, {"0.cls": b"1"})
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("1.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert opened(tmp_path).size == 1
