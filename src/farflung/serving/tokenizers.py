"""Text and chats as tokens, and tokens as text, as far as a server needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from farflung.data.tokenizers import Tokenizer
from farflung.errors import DataError, InputError
from farflung.foreign_code import first_line, translated

__all__ = ["FolderTokenizer", "PlainTokenizer", "ServedTokenizer", "end_tokens"]


class ServedTokenizer(Protocol):
    """Turns prompts into tokens and tokens into text. ``ends``: tokens that end a text."""

    ends: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a chat, up to where the assistant's answer begins.

        Raises:
            InputError: the model has no chat template, or the template refuses the chat.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``, without special tokens."""

    def spell(self, token: int) -> str:
        """The text of one token, also of a special one."""


class PlainTokenizer:
    """A tokenizer of a training job: bytes, characters or a file. It has no chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        end = getattr(tokenizer, "end", None)
        self.ends = frozenset(() if end is None else (end,))

    def encode(self, text: str) -> list[int]:
        """See ``ServedTokenizer``.

        Raises:
            InputError: the tokenizer does not know a character.
        """
        try:
            return self._tokenizer.encode(text)
        except DataError as error:
            raise InputError(str(error)) from None

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Always raises ``InputError``."""
        raise _no_template()

    def decode(self, tokens: Sequence[int]) -> str:
        """See ``ServedTokenizer``."""
        return self._tokenizer.decode(tokens)

    def spell(self, token: int) -> str:
        """See ``ServedTokenizer``."""
        return self._tokenizer.decode([token])


class FolderTokenizer:
    """The tokenizer in a model's folder, as the library ``transformers`` reads it, with its chat template.

    Raises:
        InputError: the library is missing, or the folder has no tokenizer that it can read.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise InputError("the tokenizer needs the library transformers: pip install 'farflung[hf]'") from None
        with translated(
            lambda error: InputError(f"{folder} has no tokenizer that can be read: {first_line(error)}; add tokenizer.json")
        ):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        end = self._tokenizer.eos_token_id
        self.ends = end_tokens(folder) or frozenset(() if end is None else (int(end),))

    def encode(self, text: str) -> list[int]:
        """See ``ServedTokenizer``; with the special tokens that the tokenizer adds to a prompt."""
        return list(self._tokenizer(text)["input_ids"])

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """See ``ServedTokenizer``."""
        if not self._tokenizer.chat_template:
            raise _no_template()
        with translated(lambda error: InputError(f"the model's chat template refuses the messages: {first_line(error)}")):
            found = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
            return [int(token) for token in found["input_ids"]]

    def decode(self, tokens: Sequence[int]) -> str:
        """See ``ServedTokenizer``."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def spell(self, token: int) -> str:
        """See ``ServedTokenizer``."""
        return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False))


def end_tokens(folder: Path) -> frozenset[int]:
    """The tokens that end a text according to ``generation_config.json``, else ``config.json`` (empty: neither says)."""
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        if found is not None:
            return frozenset(int(one) for one in (found if isinstance(found, list) else [found]))
    return frozenset()


def _no_template() -> InputError:
    return InputError(
        "the model has no chat template: send a prompt to /v1/completions, or add chat_template.jinja to its folder"
    )
