"""The safetensors index: agrees with the library, reads only what is asked for, refuses what is not whole."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.checkpoint import FetchedBlob, FileBlob, SafetensorsIndex
from farflung.checkpoint.safetensors import encode, spec_of
from farflung.errors import CheckpointError

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "steps": np.array(7, np.int64),
    "flag": np.array([True, False]),
    "none": np.empty((0, 5), np.float64),
}


def pack(arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    specs = {name: spec_of(array) for name, array in arrays.items()}
    return b"".join(bytes(piece) for piece in encode(specs, arrays.__getitem__, metadata))


class Counting:
    """A blob over bytes that notes what was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []
        self.blob = FetchedBlob("remote.safetensors", len(data), self.fetch)

    def fetch(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]


def header(table: object, data: bytes = b"") -> bytes:
    text = (table if isinstance(table, str) else json.dumps(table)).encode()
    return len(text).to_bytes(8, "little") + text + data


def index(data: bytes) -> SafetensorsIndex:
    return SafetensorsIndex(Counting(data).blob)


def test_round_trip_with_every_kind() -> None:
    found = index(pack(ARRAYS, {"format": "pt"}))
    assert found.metadata == {"format": "pt"}
    for name, array in ARRAYS.items():
        read = found.read(name)
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert read.flags.writeable


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(pack(ARRAYS))
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(ARRAYS)
        assert np.array_equal(file.get_tensor("w"), ARRAYS["w"])
        assert file.get_slice("half").get_dtype() == "BF16"


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    plain = {name: array for name, array in ARRAYS.items() if name != "half"}
    safetensors.numpy.save_file(plain, path, {"a": "b"})
    found = SafetensorsIndex(FileBlob(path))
    assert all(np.array_equal(found.read(name), array) for name, array in plain.items())
    assert found.metadata == {"a": "b"}


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(["float32", "int8", "float16", "int64"]), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
def test_any_tensors_round_trip(kinds: dict[str, tuple[str, list[int]]]) -> None:
    arrays = {name: np.full(shape, 3, dtype) for name, (dtype, shape) in kinds.items()}
    found = index(pack(arrays))
    assert set(found.tensors) == set(arrays)
    assert all(np.array_equal(found.read(name), array) for name, array in arrays.items())


def test_transposed_arrays_are_stored_by_rows() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(index(pack({"a": array})).read("a"), array)


def test_reads_only_the_bytes_asked_for() -> None:
    counting = Counting(pack({"big": np.zeros((1000, 100), np.float32), "small": np.ones(3, np.float32)}))
    found = SafetensorsIndex(counting.blob)
    counting.reads.clear()
    found.read("small")
    rows = found.read_rows("big", 10, 12)
    assert rows.shape == (2, 100)
    assert [length for _, length in counting.reads] == [12, 800]


def test_rows_outside_are_refused() -> None:
    found = index(pack(ARRAYS))
    assert np.array_equal(found.read_rows("w", 1, 3), ARRAYS["w"][1:3])
    with pytest.raises(CheckpointError, match=r"has 'w' of shape \[4, 3\]: there are no rows 3 to 5"):
        found.read_rows("w", 3, 5)
    with pytest.raises(CheckpointError, match=r"has 'steps' of shape \[\]: there are no rows 0 to 1"):
        found.read_rows("steps", 0, 1)


def test_unknown_tensor_names_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"remote\.safetensors has no tensor 'v': it has 5, e\.g\."):
        index(pack(ARRAYS)).read("v")


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc", "has 3 bytes, too few for a header"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "has a header of 1099511627776 bytes in a file of 10"),
        (header("{"), "has a header that is not JSON"),
        (header("[" * 100_000), "has a header that is not JSON"),
        (header('{"a":[' + "[]," * 600_000 + "[]]}"), "has a header with 1200003 items (limit 1000000): write its tensors into"),
        (header("[]"), "has a header that is no JSON object"),
        (header('{"a": 1, "a": 2}'), "names something twice"),
        (header({"__metadata__": {"a": 1}}), "has metadata that is not a table of texts"),
        (header({"a": {"dtype": "F32"}}), "describes 'a' in an unknown way"),
        (header({"a": {**ENTRY, "dtype": "F8"}}, b"0000"), "has 'a' of element type 'F8': known are F64"),
        (header({"a": {**ENTRY, "dtype": []}}, b"0000"), "has 'a' of element type"),
        (header({"a": {**ENTRY, "shape": [-1]}}, b"0000"), "has 'a' with shape [-1]"),
        (header({"a": {**ENTRY, "shape": [True]}}, b"0000"), "has 'a' with shape [True]"),
        (header({"a": {**ENTRY, "shape": [1] * 40}}, b"0000"), "has 'a' with shape"),
        (header({"a": {**ENTRY, "data_offsets": [4]}}, b"0000"), "and range [4]"),
        (header({"a": {**ENTRY, "shape": [2]}}, b"0000"), "gives 'a' 4 bytes where its shape needs 8"),
        (header({"a": {**ENTRY, "data_offsets": [4, 8]}}, b"0" * 8), "has a hole or an overlap before 'a'"),
        (header({"a": ENTRY, "b": ENTRY}, b"0000"), "has a hole or an overlap before 'b'"),
        (header({"a": ENTRY}, b"000"), "it is torn"),
        (header({"a": ENTRY}, b"00000"), "it is torn"),
    ],
)
def test_refusals(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as info:
        index(data)
    assert message in str(info.value)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 600), st.integers(0, 255))
def test_damage_is_refused_or_harmless_to_memory(place: int, value: int) -> None:
    """Any changed byte either is refused or changes no more than names, metadata or data."""
    data = bytearray(pack(ARRAYS))
    data[place % len(data)] = value
    try:
        found = index(bytes(data))
    except CheckpointError:
        return
    assert sum(entry.stop - entry.start for entry in found.tensors.values()) <= len(data)


def test_every_truncation_is_refused() -> None:
    data = pack(ARRAYS)
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            index(data[:length])


def test_writing_refuses_what_it_cannot_store() -> None:
    with pytest.raises(CheckpointError, match="element type complex64 can't be stored: known are float64"):
        spec_of(np.zeros(1, np.complex64))
    with pytest.raises(CheckpointError, match="was announced"):
        list(encode({"a": spec_of(np.zeros(2))}, lambda _: np.zeros(3)))


def test_files_and_fetchers_that_fail(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.safetensors can't be read: No such file or directory"):
        FileBlob(tmp_path / "a.safetensors")
    path = tmp_path / "b"
    path.write_bytes(b"12345678")
    blob = FileBlob(path)
    assert blob.read(2, 3) == b"345"
    with pytest.raises(CheckpointError, match="b has 8 bytes, 5 to 10 were asked for"):
        blob.read(5, 5)
    path.write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="ends after 4 bytes, 8 were expected"):
        blob.read(0, 8)
    path.unlink()
    with pytest.raises(CheckpointError, match="can't be read"):
        blob.read(0, 1)
    with pytest.raises(CheckpointError, match="remote: 4 bytes were asked for at 0, 2 came"):
        FetchedBlob("remote", 4, lambda offset, length: b"ab").read(0, 4)
