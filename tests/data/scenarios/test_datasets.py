"""Datasets on disk: what is found, which fields they have, and what two machines can tell each other about them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.data import Loader, Mixture, Place, Source, compare_fingerprints, open_source
from farflung.data.tables.files import TableFiles
from farflung.errors import DataError, InputError
from farflung.graph.ir import TensorSpec
from farflung.job.load import make_job
from farflung.job.spec import DataSpec
from tests.support.models.tables import NEEDS_DATASETS, chat, tokenizer_folder, write_rows

pytestmark = NEEDS_DATASETS


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing dials."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"dialled {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def opened(tmp_path: Path, split: Any = "train", **fields: Any) -> Source:
    spec = DataSpec.model_validate({"kind": "dataset", "path": "rows.jsonl", "sequence": 16, "eval_fraction": 0.0} | fields)
    return open_source(spec, tmp_path, split=split, cache=tmp_path / "cache", confined=True)


def rows(source: Source, field: str) -> list[Any]:
    found: list[Any] = source.batch(np.arange(source.size), [field])[field].tolist()
    return found


NUMBERS = [{"x": [float(i), 0.5], "y": i % 3, "name": "n"} for i in range(5)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "arrow", "disk"])
def test_columns_of_each_kind_of_file(kind: str, tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_list([{"x": row["y"] + 0.5, "y": row["y"]} for row in NUMBERS])
    folder = tmp_path / "data"
    folder.mkdir()
    if kind == "jsonl":
        table.to_json(folder / "a.jsonl")
    elif kind == "parquet":
        table.to_parquet(folder / "a.parquet")
    elif kind == "csv":
        table.to_csv(folder / "a.csv", index=False)
    else:
        table.save_to_disk(str(folder / "saved"))
    (folder / "README.md").write_text("not a table")
    source = opened(tmp_path, path="data")
    assert rows(source, "y") == [0, 1, 2, 0, 1]
    assert rows(source, "x") == [0.5, 1.5, 2.5, 0.5, 1.5]
    assert source.spec("x") == TensorSpec(dtype="float32", shape=())
    assert source.spec("y") == TensorSpec(dtype="int64", shape=())


def test_columns_fill_the_inputs_of_their_names(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", NUMBERS)
    data = DataSpec(kind="dataset", path="rows.jsonl", eval_fraction=0.0, fields={"label": "y"})
    places = {"x": TensorSpec(dtype="float32", shape=(2, 2)), "label": TensorSpec(dtype="int64", shape=(2,))}
    loader = Loader(data, open_source(data, tmp_path, cache=tmp_path / "cache"), places, [2], seed=1)
    assert loader.fields == {"x": "x", "label": "y"}
    batch = loader.batch(0, 0)
    assert batch["x"].shape == (2, 2)
    assert (batch["x"][:, 0] % 3 == batch["label"]).all()


def test_a_column_that_is_called_like_a_format_holds_numbers(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"png": [[[2.0]], [[3.0]], [[4.0]]], "tif": 0.5 * i} for i in range(4)])
    image = {"mean": (0.5, 0.5, 0.5), "flip": 1.0, "crop": 1}
    data = DataSpec.model_validate({"kind": "dataset", "path": "rows.jsonl", "eval_fraction": 0.0, "image": image})
    source = open_source(data, tmp_path, cache=tmp_path / "cache")
    assert rows(source, "tif") == [0.0, 0.5, 1.0, 1.5]
    places = {"png": TensorSpec(dtype="float32", shape=(2, 3, 1, 1)), "tif": TensorSpec(dtype="float32", shape=(2,))}
    batch = Loader(data, source, places, [2], seed=1).batch(0, 0)
    assert batch["png"][:, :, 0, 0].tolist() == [[2.0, 3.0, 4.0]] * 2


def test_text_is_packed_whole(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "tok")
    write_rows(tmp_path / "rows.jsonl", [{"text": "abcdefg"}, {"text": "hi"}, {"text": "klmno"}])
    source = opened(tmp_path, text="text", tokenizer="tok", sequence=12)
    end = 256
    assert sorted(row.count(end) for row in rows(source, "inputs")) == [1, 2]
    inputs, targets, labels, positions, segments, mask = (
        next(row for row, one in zip(rows(source, name), rows(source, "segment_ids"), strict=True) if 2 in one)
        for name in ("inputs", "targets", "labels", "position_ids", "segment_ids", "attention_mask")
    )
    cut = segments.index(2)
    assert inputs[cut - 1] == end, "documents end with the tokenizer's own token"
    assert positions[:cut] == list(range(cut))
    assert positions[cut] == 0
    assert labels[0] == labels[cut] == -100, "nothing predicts the first token of a document"
    assert targets[cut - 1] == -100
    assert targets[: cut - 1] == inputs[1:cut] == labels[1:cut]
    assert [value for value, one in zip(mask, segments, strict=True) if one] == [1] * sum(mask)
    assert all(value == -100 for value, one in zip(labels, segments, strict=True) if not one)


def test_one_text_in_each_sample_and_a_stream(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "abc"}, {"text": "defgh"}])
    alone = opened(tmp_path, text="text", packing="none", sequence=4)
    assert rows(alone, "inputs") == [
        [97, 98, 99, 0],
        [100, 101, 102, 103],
    ], "a rest of one token has no target"
    stream = opened(tmp_path, text="text", packing="split", sequence=3)
    assert rows(stream, "inputs") == [[97, 98, 99], [100, 101, 102]]
    assert rows(stream, "targets") == [[98, 99, 100], [101, 102, 103]]
    assert rows(stream, "labels") == rows(stream, "inputs")


def spelled(values: list[int]) -> str:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(spelled.folder / "tokenizer.json"))  # type: ignore[attr-defined]
    return str(tokenizer.decode([value for value in values if value != -100]))


@pytest.mark.parametrize("form", ["messages", "sharegpt", "marked"])
def test_only_what_the_assistant_writes_counts(form: str, tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m['role'][0] }}]{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }};"
    template += "{% endgeneration %}{% else %}{{ m['content'] }};{% endif %}{% endfor %}"
    spelled.folder = tokenizer_folder(tmp_path / "tok", **({"template": template} if form == "marked" else {}))  # type: ignore[attr-defined]
    talk = chat("hi", "yes", "more", "no")
    if form == "sharegpt":
        names = {"user": "human", "assistant": "gpt"}
        talk = {"messages": [{"from": names[one["role"]], "value": one["content"]} for one in talk["messages"]]}
    write_rows(tmp_path / "rows.jsonl", [talk])
    source = opened(tmp_path, messages="messages", tokenizer="tok", sequence=40)
    assert spelled(rows(source, "inputs")[0][: sum(rows(source, "attention_mask")[0])]) == "[u]hi;[a]yes;[u]more;[a]no;"
    assert spelled(rows(source, "labels")[0]) == spelled(rows(source, "targets")[0]) == "yes;no;"
    everything = opened(tmp_path, messages="messages", tokenizer="tok", sequence=40, loss_on="all")
    assert spelled(rows(everything, "labels")[0]) == "u]hi;[a]yes;[u]more;[a]no;"


def test_chats_without_an_answer_are_left_out(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "tok")
    write_rows(tmp_path / "rows.jsonl", [chat("only a question"), chat("hi", "yes"), chat("a long question" * 9, "cut off")])
    assert opened(tmp_path, messages="messages", tokenizer="tok", packing="none", sequence=40).size == 1


def test_a_mixture_has_the_samples_of_all_parts(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": f"a{i}"} for i in range(20)])
    write_rows(tmp_path / "b.jsonl", [{"body": f"b{i}"} for i in range(10)])
    parts = [{"path": "a.jsonl", "weight": 3.0}, {"path": "b.jsonl", "text": "body"}]
    held, source = (
        opened(tmp_path, split, path="", mixture=parts, text="text", packing="none", sequence=3, eval_fraction=0.1)
        for split in ("eval", "train")
    )
    assert isinstance(source, Mixture)
    assert (source.size, held.size) == (27, 3)
    letters = [chr(row[0]) for row in rows(source, "inputs")]
    assert letters == ["a"] * 18 + ["b"] * 9
    order = source.sampler(1).at(0, 400)
    picked = source.batch(order, ["inputs"])["inputs"][:, 0]
    assert 240 < int((picked == ord("a")).sum()) < 360
    assert np.array_equal(picked == ord("a"), order < 18)


def test_two_machines_with_other_files_differ(tmp_path: Path) -> None:
    found = {}
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        write_rows(tmp_path / name / "rows.jsonl", [{"text": text * 9}])
        found[name] = opened(tmp_path / name, text="text").fingerprint()
    compare_fingerprints({name: found[name] for name in "ab"})
    with pytest.raises(DataError, match="hold different data: tokens is"):
        compare_fingerprints(found)


def test_the_second_reader_tokenizes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "abcdefgh" * 4}])
    first = rows(opened(tmp_path, text="text"), "inputs")
    monkeypatch.setattr("farflung.data.tables.documents.TextEncoder.__call__", None)
    assert rows(opened(tmp_path, text="text"), "inputs") == first


@pytest.mark.parametrize(
    ("content", "fields", "text"),
    [
        ([{"a": 1}], {"text": "text"}, r"^data 'rows\.jsonl' has no column 'text': it has a$"),
        (
            [{"text": 1}],
            {"text": "text"},
            r"^data 'rows\.jsonl': column 'text', row 0: it holds int, not text: name a column of text",
        ),
        (
            [{"text": "ab"}],
            {"text": "text", "packing": "split"},
            r"has no sample: no row has 17 tokens; check the files, or shorten",
        ),
        (
            [{"m": "ab"}],
            {"messages": "m", "tokenizer": "tok"},
            r"row 0: it holds str, not lists of messages: name a column of chats",
        ),
        ([{"m": [{"a": 1}]}], {"messages": "m", "tokenizer": "tok"}, r"row 0: a message has a: it needs role and content$"),
        ([chat("hi")], {"messages": "messages", "tokenizer": "tok"}, r"has no sample: no row has an answer of the assistant"),
        ([chat("hi")], {"messages": "messages", "tokenizer": "no"}, r"no folder with a tokenizer\.json, which chats need$"),
        (
            [chat("hi")],
            {"messages": "messages", "tokenizer": "bare"},
            r"^data\.tokenizer = 'bare' has no chat template: add chat_tem",
        ),
        (
            [chat("hi", "a")],
            {"messages": "messages", "tokenizer": "last"},
            r"changes earlier messages, so answers can't be found: put",
        ),
        (
            [chat("hi")],
            {"messages": "messages", "tokenizer": "refuses"},
            r"^data .*: the chat template of 'refuses' refuses a chat: no$",
        ),
        ([chat("hi")], {"messages": "messages", "tokenizer": "../out"}, r"leads out of this machine's data folder"),
        (
            [{"x": "a"}],
            {"fields": {"x": "x"}},
            r"the column 'x' holds str, not numbers: name it in data\.text or data\.messages, or",
        ),
        ([{"x": [1]}, {"x": [1, 2]}], {"fields": {"x": "x"}}, r"rows of the column 'x' have different lengths: make them equal$"),
        ([], {"path": "none"}, r"^data 'none' is not on this machine"),
        (
            [],
            {"path": "tok"},
            r"^data 'tok' has files of the kinds|^data 'tok' has no table on this machine|can't be read as json",
        ),
        (
            [],
            {"path": "mixed"},
            r"^data 'mixed' has files of the kinds csv, json: choose one with data\.glob, e\.g\. '\*\*/\*\.parq",
        ),
        ([], {"path": "plain"}, r"^data 'plain' has no table on this machine \(looked in .*\): known are \.parquet, \.jsonl"),
        ([], {"path": "broken.parquet"}, r"^data 'broken\.parquet' can't be read as parquet: .*; write the files again$"),
    ],
)
def test_what_is_refused(content: list[Any], fields: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", content)
    tokenizer_folder(tmp_path / "tok")
    tokenizer_folder(tmp_path / "bare", None)
    tokenizer_folder(tmp_path / "last", "{{ messages[-1]['content'] }}")
    tokenizer_folder(tmp_path / "refuses", "{{ raise_exception('no') }}")
    for name in ("mixed/a.csv", "mixed/b.jsonl", "plain/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(DataError, match=text) as caught:
        _read(opened(tmp_path, **fields), fields)
    assert "\n" not in str(caught.value)


def _read(source: Source, fields: dict[str, Any]) -> None:
    source.check(list(fields.get("fields", {}).values()))
    rows(source, "inputs" if "text" in fields or "messages" in fields else "x")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "rows.jsonl", NUMBERS)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    files = TableFiles("rows.jsonl", "**/*", Place(base=tmp_path, cache=tmp_path / "cache"))
    with pytest.raises(
        InputError, match=r"^data\.kind = 'dataset' needs the library datasets: pip install 'farflung\[datasets\]'$"
    ):
        files.open()


JOB: dict[str, Any] = {"steps": 1, "model": {"recipe": "gpt"}}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"kind": "dataset"},
            r"data\.kind = 'dataset' needs data\.path: name the folder or file that every reading machine has$",
        ),
        (
            {"kind": "text", "path": "x", "text": "t"},
            r"data\.text is for data\.kind = 'dataset' only, this is 'text': remove it$",
        ),
        (
            {"path": "x", "mixture": [{"path": "y"}]},
            r"data\.path = 'x' beside data\.mixture: name the file or folder in one of them$",
        ),
        (
            {"eval_path": "x", "mixture": [{"path": "y"}]},
            r"data\.eval_path = 'x' beside data\.mixture: set data\.eval_fraction inst",
        ),
        (
            {"path": "x", "text": "a", "messages": "b"},
            r"data\.text = 'a' beside data\.messages = 'b': a dataset has one of them$",
        ),
        (
            {"path": "x", "messages": "b"},
            r"data\.messages with data\.tokenizer = 'bytes': chats need the folder of a tokenizer with",
        ),
        ({"path": "x", "text": "b", "tokenizer": "chars"}, r"data\.tokenizer = 'chars' is for data\.kind = 'text': set 'bytes'"),
        (
            {"mixture": [{"path": "y"}, {"path": "z", "text": "t"}]},
            r"data\.mixture: 'z' and 'y' must both have text or messages, or",
        ),
    ],
)
def test_jobs_that_are_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        make_job(JOB | {"data": {"kind": "dataset"} | data})
    assert "\n" not in str(caught.value)
