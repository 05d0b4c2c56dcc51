"""Text: what is found, how it becomes windows, what two machines can tell each other about it."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from farflung.data import Place, Source, compare_fingerprints, open_source, open_tokenizer
from farflung.data.files import atomic_file, default_cache, find
from farflung.data.text import TextSource
from farflung.data.tokenizers import BytesTokenizer, CharsTokenizer, FileTokenizer
from farflung.errors import DataError, InputError
from farflung.job.spec import DataSpec


def corpus(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def text(tmp_path: Path, **fields: object) -> TextSource:
    spec = DataSpec.model_validate({"kind": "text", "path": "corpus", "sequence": 4, "eval_fraction": 0.0} | fields)
    source = open_source(spec, tmp_path, cache=tmp_path / "cache")
    assert isinstance(source, TextSource)
    return source


def rows(source: Source, field: str) -> list[list[int]]:
    found: list[list[int]] = source.batch(np.arange(source.size), [field])[field].tolist()
    return found


def test_windows_of_bytes_in_the_order_of_paths(tmp_path: Path) -> None:
    corpus(tmp_path, {"b.txt": "fghi", "a/z.txt": "abcde"})
    source = text(tmp_path)
    assert source.size == 2
    assert [bytes(row) for row in rows(source, "inputs")] == [b"abcd", b"efgh"]
    assert [bytes(row) for row in rows(source, "targets")] == [b"bcde", b"fghi"]
    assert rows(source, "labels") == rows(source, "inputs")
    assert rows(source, "attention_mask") == [[1] * 4] * 2


@pytest.mark.parametrize("single", [True, False])
def test_a_pipe_in_the_data_folder_is_refused(tmp_path: Path, single: bool) -> None:
    """Opening it would wait for a writer, for ever."""
    corpus(tmp_path, {"a.txt": "abcdefgh"})
    os.mkfifo(tmp_path / "corpus" / "b.txt")
    says = r"data 'corpus.*b.txt is a pipe, a socket or a device, not a file" if not single else "data 'corpus/b.txt'"
    with pytest.raises(DataError, match=says):
        text(tmp_path, **({"path": "corpus/b.txt"} if single else {})).check()


def test_only_the_fields_asked_for(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "abcdefghijklmnop"})
    found = text(tmp_path).batch(np.array([1, 0]), ["targets"])
    assert list(found) == ["targets"]
    assert found["targets"].dtype == np.int64
    assert bytes(found["targets"][0].tolist()) == b"fghi"
    with pytest.raises(DataError, match="text has no field 'weights': it has inputs, targets"):
        text(tmp_path).batch(np.array([0]), ["weights"])


def test_glob_hidden_files_and_single_files(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.py": "abcde", "b.md": "xxxxx", ".git/c.py": "yyyyy", "__pycache__/d.py": "zzzzz"})
    assert [bytes(row) for row in rows(text(tmp_path, glob="**/*.py"), "inputs")] == [b"abcd"]
    assert [bytes(row) for row in rows(text(tmp_path, path="corpus/b.md"), "inputs")] == [b"xxxx"]


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("**/*", {"a.txt", "b.md", "x/a.txt", "x/y/c1.txt"}),
        ("**", {"a.txt", "b.md", "x/a.txt", "x/y/c1.txt"}),
        ("*", {"a.txt", "b.md"}),
        ("*.txt", {"a.txt"}),
        ("**/a.txt", {"a.txt", "x/a.txt"}),
        ("x/**/*.txt", {"x/a.txt", "x/y/c1.txt"}),
        ("x/*.txt", {"x/a.txt"}),
        ("?.[a-m]*", {"b.md"}),
        ("**/c[!2-9].txt", {"x/y/c1.txt"}),
    ],
)
def test_patterns(tmp_path: Path, glob: str, found: set[str]) -> None:
    corpus(tmp_path, dict.fromkeys(["a.txt", "b.md", "x/a.txt", "x/y/c1.txt"], "text"))
    root, files = find("corpus", glob, Place(base=tmp_path, cache=tmp_path))
    assert [file.relative_to(root).as_posix() for file in files] == sorted(found)


def test_standard_library_is_found_without_what_differs_between_machines(tmp_path: Path) -> None:
    source = text(tmp_path, path="{stdlib}/json", glob="**/*.py", sequence=64)
    expected = b"".join(path.read_bytes() for path in sorted((Path(sysconfig.get_path("stdlib")) / "json").glob("*.py")))
    assert source.size == (len(expected) - 1) // 64
    assert bytes(source.batch(np.array([0]), ["inputs"])["inputs"][0].tolist()) == expected[:64]


def test_generated_files_of_the_standard_library_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"a.py": "abcde", "_sysconfigdata__linux.py": "x" * 9, "site-packages/b.py": "y" * 9, "config-3/c.py": "z" * 9}
    corpus(tmp_path, names)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "corpus"))
    assert text(tmp_path, path="{stdlib}").size == 1
    assert text(tmp_path).size == (5 + 9 + 9 - 1) // 4


def test_cache_is_made_once_and_follows_the_content(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "abcdefgh"})
    first = rows(text(tmp_path), "inputs")
    made = {path.name for path in (tmp_path / "cache").iterdir()}
    assert rows(text(tmp_path), "inputs") == first
    assert {path.name for path in (tmp_path / "cache").iterdir()} == made
    corpus(tmp_path, {"a.txt": "ABCDEFGHI"})
    assert bytes(rows(text(tmp_path), "inputs")[0]) == b"ABCD"
    assert len(list((tmp_path / "cache").glob("tokens-*.u1"))) == 2


def test_a_broken_cache_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_file(tmp_path / "cache" / "x") as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"the cache folder .*file can't be written"), atomic_file(tmp_path / "file" / "x"):
        pass


def test_default_cache_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "farflung"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "farflung"


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data 'corpus' is not on this machine .*corpus\): .* join --data FOLDER"):
        text(tmp_path).check()
    corpus(tmp_path, {"a.txt": "abc"})
    with pytest.raises(DataError, match=r"data 'corpus' has no file that matches '\*\.md' on this machine"):
        text(tmp_path, glob="*.md").check()
    for glob in ("/etc/*", "../*", "x/../../*", ""):
        with pytest.raises(InputError, match="is not a pattern below the data folder"):
            text(tmp_path, glob=glob).check()
    with pytest.raises(InputError, match="is not a pattern: "):
        text(tmp_path, glob="[z-a]").check()
    with pytest.raises(InputError, match=r"only {stdlib} may stand in braces"):
        text(tmp_path, path="{home}/x").check()
    with pytest.raises(DataError, match=r"tokenizer 'tok\.json' is not on this machine"):
        text(tmp_path, tokenizer="tok.json").check()
    with pytest.raises(DataError, match=r"data 'corpus' has 3 tokens, one sample needs 5: add text or shorten data.sequence"):
        text(tmp_path).size  # noqa: B018
    text(tmp_path).check()


def test_empty_text(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": ""})
    with pytest.raises(DataError, match="has 0 tokens"):
        text(tmp_path).size  # noqa: B018


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path, {"a.txt": "abc"})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"data 'corpus': a\.txt can't be read on this machine: Permission denied"):
        text(tmp_path).check()


def test_fingerprints_tell_machines_apart(tmp_path: Path) -> None:
    for machine, content in (("one", "abcdefgh"), ("two", "abcdefgh"), ("three", "abcdefgX")):
        corpus(tmp_path / machine, {"a.txt": content})
    prints = {machine: text(tmp_path / machine).fingerprint() for machine in ("one", "two", "three")}
    assert prints["one"] == prints["two"]
    assert text(tmp_path / "one", sequence=3).fingerprint() != prints["one"]
    compare_fingerprints({"one": prints["one"], "two": prints["two"]})
    with pytest.raises(DataError, match=r"one and three hold different data: text is .* copy the same files to both"):
        compare_fingerprints(prints)


def test_evaluation_and_training_are_disjoint_and_whole(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "".join(map(chr, range(33, 33 + 81)))})
    spec = DataSpec(kind="text", path="corpus", sequence=4, eval_fraction=0.3)
    parts = [open_source(spec, tmp_path, split=split, cache=tmp_path / "cache") for split in ("train", "eval")]
    assert [part.size for part in parts] == [14, 6]
    windows = [{tuple(row) for row in rows(part, "targets")} for part in parts]
    assert not windows[0] & windows[1]
    assert len(windows[0] | windows[1]) == 20
    again = open_source(spec, tmp_path, split="eval", cache=tmp_path / "cache")
    assert {tuple(row) for row in rows(again, "targets")} == windows[1]
    assert parts[0].names == parts[1].names
    assert parts[0].fingerprint() == parts[1].fingerprint()


def test_evaluation_on_other_files(tmp_path: Path) -> None:
    corpus(tmp_path, {"train/a.txt": "abcdefghi", "eval/a.txt": "vwxyz"})
    spec = DataSpec(kind="text", path="corpus/train", eval_path="corpus/eval", sequence=4)
    train, held = (open_source(spec, tmp_path, split=split, cache=tmp_path / "cache") for split in ("train", "eval"))
    assert (train.size, held.size) == (2, 1)
    assert bytes(rows(held, "inputs")[0]) == b"vwxy"


def test_nothing_to_evaluate_on(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "abcde"})
    spec = DataSpec(kind="text", path="corpus", sequence=4)
    assert open_source(spec, tmp_path, cache=tmp_path / "cache").size == 1
    with pytest.raises(DataError, match=r"too few to keep one for evaluation: set data.eval_path"):
        open_source(spec, tmp_path, split="eval", cache=tmp_path / "cache").size  # noqa: B018
    with pytest.raises(InputError, match=r"set data.eval_path, or data.eval_fraction above 0"):
        open_source(spec.model_copy(update={"eval_fraction": 0.0}), tmp_path, split="eval")
    with pytest.raises(InputError, match="is fed by the process that submits the job"):
        open_source(DataSpec(), tmp_path)


def test_a_confined_machine_keeps_jobs_in_its_data_folder(tmp_path: Path) -> None:
    corpus(tmp_path / "base", {"a.txt": "abcde"})
    corpus(tmp_path, {"a.txt": "abcde"})
    place = Place(base=tmp_path / "base", cache=tmp_path / "cache", confined=True)
    for path in ("corpus", "corpus/../corpus", "{stdlib}", "{stdlib}/json"):
        assert find(path, "**/*", place)[1]
    for path in ("../corpus", str(tmp_path / "corpus"), "corpus/../../corpus", "~", "{stdlib}/../../etc"):
        with pytest.raises(DataError, match="leads out of this machine's data folder, which jobs may not leave"):
            find(path, "**/*", place)
    spec = DataSpec(kind="text", path="corpus", tokenizer="../tok.json", sequence=4)
    with pytest.raises(DataError, match=r"data path '\.\./tok\.json' leads out"):
        open_source(spec, tmp_path / "base", cache=tmp_path / "cache", confined=True).check()


def test_links_do_not_lead_out_of_a_confined_folder(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "abcde"})
    corpus(tmp_path / "base", {"b.txt": "abcde"})
    inner = tmp_path / "base" / "corpus"
    place = Place(base=tmp_path / "base", cache=tmp_path / "cache", confined=True)
    (inner / "same.txt").symlink_to("b.txt")
    assert len(find("corpus", "**/*", place)[1]) == 2, "a link that stays inside is good"
    (tmp_path / "base" / "away").symlink_to(tmp_path / "corpus")
    (inner / "away.txt").symlink_to(tmp_path / "corpus" / "a.txt")
    for path in ("corpus", "away", "corpus/away.txt", "away/a.txt"):
        with pytest.raises(DataError, match=f"data path '{path}' leads out of .* with --data FOLDER, or with --any-path"):
            find(path, "**/*", place)
    assert find("away", "**/*", Place(base=tmp_path / "base", cache=tmp_path / "cache"))[1]


def test_opening_a_tokenizer(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "hello"})
    spec = DataSpec(kind="text", path="corpus", tokenizer="chars", sequence=4)
    assert open_tokenizer(spec, tmp_path).decode([0, 1]) == "eh"
    assert open_tokenizer(DataSpec(kind="text", path="x"), tmp_path).size == 256
    with pytest.raises(InputError, match=r"data\.kind = 'array' has no tokenizer: only text and chats have one"):
        open_tokenizer(DataSpec(kind="array", path="x"), tmp_path)


def test_bytes_tokenizer() -> None:
    tokenizer = BytesTokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve ✓")) == "naïve ✓"
    assert tokenizer.decode([104, 105, 300, 255]) == "hi\ufffd"


def test_characters(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "hello", "b.txt": "wörld"})
    source = text(tmp_path, tokenizer="chars")
    assert source.vocabulary == 8
    tokenizer = source.tokenizer
    assert isinstance(tokenizer, CharsTokenizer)
    assert tokenizer.characters == "dehlorwö"[:4] + "orwö"
    assert tokenizer.decode(rows(source, "inputs")[0]) == "hell"
    assert tokenizer.decode([99]) == ""
    with pytest.raises(DataError, match=r"character '!' does not occur in the training text: use data\.tokenizer = 'bytes'"):
        tokenizer.encode("hello!")


def library_tokenizer(path: Path, size: int = 0) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "<|endoftext|>", "the", "cat", "sat", *(f"w{number}" for number in range(size))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def test_tokenizer_files(tmp_path: Path) -> None:
    library_tokenizer(tmp_path / "tok.json")
    corpus(tmp_path, {"a.txt": "the cat sat", "b.txt": "the dog"})
    source = text(tmp_path, tokenizer="tok.json", sequence=3)
    source.check()
    assert source.vocabulary == 5
    assert rows(source, "inputs") == [[2, 3, 4], [1, 2, 0]]
    assert rows(source, "targets") == [[3, 4, 1], [2, 0, 1]]
    tokenizer = source.tokenizer
    assert isinstance(tokenizer, FileTokenizer)
    assert tokenizer.encode("cat sat") == [3, 4]
    assert tokenizer.decode([3, 4, 1]) == "cat sat"


def test_large_vocabularies_take_wider_cells(tmp_path: Path) -> None:
    library_tokenizer(tmp_path / "tok.json", 300)
    corpus(tmp_path, {"a.txt": "w298 w299 the cat sat"})
    source = text(tmp_path, tokenizer="tok.json")
    assert rows(source, "inputs") == [[303, 304, 2, 3]]
    assert list((tmp_path / "cache").glob("tokens-*.u2"))


@pytest.mark.parametrize("content", ["{", "{}", "[1]", '{"model": 3}'])
def test_bad_tokenizer_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "tok.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer 'tok\.json' can't be read: .*; it must be a tokenizer\.json"):
        FileTokenizer(tmp_path / "tok.json", "tok.json")


def test_a_pipe_that_takes_the_place_of_a_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    corpus(tmp_path, {"a.txt": "abcdefgh"})
    source = text(tmp_path)
    source._files  # noqa: B018 - the files are found
    (tmp_path / "corpus" / "a.txt").unlink()
    os.mkfifo(tmp_path / "corpus" / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt is a pipe, a socket or a device, not a file: remove it"):
        source.check()
