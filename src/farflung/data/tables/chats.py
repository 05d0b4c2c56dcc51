"""Chats as tokens: the tokenizer's own chat template, and which tokens the assistant has written.

A template with ``{% generation %}`` marks what the assistant writes. For all others, each answer of the assistant lies between
the text before it, with the prompt for an answer, and the text that ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farflung.errors import DataError, InputError
from farflung.foreign_code import first_line, translated
from farflung.ids import content_hash

__all__ = ["ChatTokenizer"]

#: Names of roles in chats of the ShareGPT form (``from`` and ``value``).
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class ChatTokenizer:
    """The tokenizer in ``folder`` with its chat template, which runs in the sandbox of the library ``transformers``.

    Raises:
        InputError: the library is missing.
        DataError: the folder has no tokenizer or no chat template.
    """

    def __init__(self, folder: Path, name: str) -> None:
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError:
            raise InputError("data.messages needs the library transformers: pip install 'farflung[hf]'") from None
        if not (folder / "tokenizer.json").is_file():
            raise DataError(
                f"data.tokenizer = {name!r}: {folder} on this machine is no folder with a tokenizer.json, which chats need"
            )
        with translated(lambda error: DataError(f"tokenizer {name!r} can't be read: {first_line(error)}")):
            self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        template = self._tokenizer.chat_template
        if not isinstance(template, str):
            raise DataError(f"data.tokenizer = {name!r} has no chat template: add chat_template.jinja to the folder")
        self._name, self._marks = name, "{% generation" in template or "{%- generation" in template
        texts = [path.read_bytes() for path in (folder / one for one in _FILES) if path.is_file()]
        self.fingerprint = f"chat-1-{content_hash(b''.join(texts))}"

    def encode(self, chat: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[bool]]:
        """The tokens of ``chat``, and which of them the assistant has written.

        Raises:
            DataError: the template refuses the chat, or does not show where an answer ends.
        """
        messages = [_message(one) for one in chat]
        with translated(lambda error: DataError(f"the chat template of {self._name!r} refuses a chat: {first_line(error)}")):
            if self._marks:
                found = self._tokenizer.apply_chat_template(
                    messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                )
                return list(found["input_ids"]), [bool(one) for one in found["assistant_masks"]]
            text = self._text(messages)
            answers = [index for index, one in enumerate(messages) if one["role"] == "assistant"]
            texts = [(self._text(messages[:index], prompt=True), self._text(messages[: index + 1])) for index in answers]
        if not all(after.startswith(before) and text.startswith(after) for before, after in texts):
            raise DataError(
                f"the chat template of {self._name!r} changes earlier messages, so answers can't be found: put "
                "{% generation %} and {% endgeneration %} around what the assistant writes"
            )
        spans = [(len(before), len(after)) for before, after in texts]
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        written = [any(first <= start < end <= last for first, last in spans) for start, end in found["offset_mapping"]]
        return list(found["input_ids"]), written

    def _text(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt))


def _message(one: Mapping[str, Any]) -> dict[str, Any]:
    """A message with ``role`` and ``content``; keys without a value, which tables add, are left out."""
    given = {key: value for key, value in one.items() if value is not None}
    if "role" not in given and "from" in given:
        given = {"role": _ROLES.get(given["from"], given["from"]), "content": given.get("value", "")}
    if "role" not in given:
        raise DataError(f"a message has {', '.join(given) or 'nothing'}: it needs role and content")
    return given
