"""Text to token ids and back: bytes, characters, or a tokenizer file of the ``tokenizers`` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from farflung.errors import DataError, InputError
from farflung.foreign_code import translated
from farflung.ids import content_hash

__all__ = ["BytesTokenizer", "CharsTokenizer", "FileTokenizer", "Tokenizer"]


class Tokenizer(Protocol):
    """Turns text into ids below ``size`` and back."""

    @property
    def size(self) -> int:
        """Number of ids; a model's vocabulary must be at least that large."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same text would give other ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` (what is no valid text is replaced)."""


class BytesTokenizer:
    """The bytes of UTF-8 as they are: 256 ids."""

    __slots__ = ()
    size = 256
    fingerprint = "bytes-1"

    def encode(self, text: str) -> list[int]:
        """UTF-8 bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes; ids above 255 (unused rows of a model's vocabulary) are left out."""
        return bytes(number for number in ids if 0 <= number < 256).decode(errors="replace")


class CharsTokenizer:
    """The characters of a text, sorted: as many ids as there are different characters."""

    __slots__ = ("_ids", "characters")

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        self._ids = {character: number for number, character in enumerate(self.characters)}

    @property
    def size(self) -> int:
        """Number of different characters."""
        return len(self.characters)

    @property
    def fingerprint(self) -> str:
        """Hash of the characters."""
        return f"chars-{content_hash(self.characters.encode())}"

    def encode(self, text: str) -> list[int]:
        """The characters' ids.

        Raises:
            DataError: a character isn't in the training text.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise DataError(
                f"character {error.args[0]!r} does not occur in the training text: use data.tokenizer = 'bytes', which knows all"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The characters; unknown ids are left out."""
        return "".join(self.characters[number] for number in ids if 0 <= number < self.size)


class FileTokenizer:
    """A ``tokenizer.json`` of the ``tokenizers`` library (extra ``hf``), or a folder with one.

    Documents end with the ``eos_token`` of the folder, or with the file's own end-of-text token if it has one of the usual names.
    No other special tokens are added.

    Raises:
        DataError: the file is missing or isn't a tokenizer.
        InputError: the ``tokenizers`` library isn't installed.
    """

    __slots__ = ("_tokenizer", "end", "fingerprint", "size")

    def __init__(self, path: Path, name: str) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise InputError(f"data.tokenizer = {name!r} needs the tokenizers library: pip install 'farflung[hf]'") from None
        folder = path if path.is_dir() else None
        path = path / "tokenizer.json" if folder is not None else path
        if not path.is_file():
            raise DataError(f"tokenizer {name!r} is not on this machine (looked at {path}): copy the tokenizer.json there")
        text = path.read_text(encoding="utf-8", errors="replace")
        with translated(lambda error: DataError(f"tokenizer {name!r} can't be read: {error}; it must be a tokenizer.json")):
            json.loads(text)
            self._tokenizer = Library.from_str(text)  # raises a bare Exception for a bad file
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.fingerprint = f"file-{content_hash(text.encode())}"
        ends = (self._tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"))
        self.end: int | None = next((number for number in ends if number is not None), None)
        if folder is not None and (own := _end_token(folder)):
            self.end = self._tokenizer.token_to_id(own)
            self.fingerprint += f"-{self.end}"

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, no special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_document(self, text: str) -> list[int]:
        """The ids of a whole document with its end."""
        return self.encode(text) + ([] if self.end is None else [self.end])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _end_token(folder: Path) -> str:
    """The ``eos_token`` of a tokenizer's folder (empty: it has none)."""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return ""
    return str(found.get("content", "") if isinstance(found, dict) else found or "")
