"""Small datasets on disk, and a tokenizer with a chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

__all__ = ["NEEDS_DATASETS", "TEMPLATE", "chat", "tokenizer_folder", "write_rows"]

#: The library is an extra. The tests behind this marker are skipped with one line where it is missing.
NEEDS_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="the extra 'datasets' is not installed")

#: A template of the usual form. Each character is a token of the tokenizer below.
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'][0] }}]{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


def chat(*turns: str) -> dict[str, Any]:
    """A row with a chat: the user's and the assistant's turns."""
    return {"messages": [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(turns)]}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """``rows`` as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tokenizer_folder(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A folder as ``save_pretrained`` writes it: bytes as tokens, ``<eos>`` at the end of documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"})
    )
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
