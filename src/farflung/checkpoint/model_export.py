"""A run as a folder for the library of its model, with what belongs beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from farflung.checkpoint.adapters import Adapters
from farflung.checkpoint.export import LIBRARIES, export_folder
from farflung.checkpoint.model_files import bytes_tokenizer
from farflung.checkpoint.quantized_base import whole_states
from farflung.checkpoint.reader import CheckpointReader
from farflung.errors import InputError
from farflung.job import from_json as job_from_json

__all__ = ["export_model"]

_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
#: Names that tokens for the end of a text usually have.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def export_model(reader: CheckpointReader, kept: Mapping[str, bytes], out: Path) -> list[str]:
    """Write weights, configuration, tokenizer and generation settings to ``out``; returns what to print, line by line.

    ``kept``: the files of the model that the run keeps, by name.

    Raises:
        InputError: the model is not one of ``LIBRARIES``.
        CheckpointError: the export fails.
    """
    notes = reader.manifest.notes
    library = next((name for name in LIBRARIES if name in notes), None)
    if library is None:
        raise InputError(
            f"this run's model is not one of {', '.join(LIBRARIES)} (no configuration in the checkpoint): "
            "export to one safetensors file instead"
        )
    files, remark = _files(reader, kept) if library == "transformers" else (dict(kept), "")
    prefix = notes.get("prefix", "")
    found = Adapters.of(reader)
    whole = whole_states(reader)
    states = whole.states
    if found is None:
        names = {state: state.removeprefix(prefix) for state in states if state.startswith(prefix)}
        export_folder(whole, out, config=notes[library], names=names, files=files)
    else:
        merging = found
        names = {state: merging.plain_name(state).removeprefix(prefix) for state in states if not merging.is_adapter(state)}
        export_folder(
            whole,
            out,
            config=notes[library],
            names=names,
            files=files,
            change=lambda state, value: merging.merge(reader, state, value),
        )
    written = ", ".join(sorted(["config.json", LIBRARIES[library][1], *files]))
    return [f"{out}: step {reader.manifest.step} ({written})", *([remark] if remark else [])]


def _files(reader: CheckpointReader, kept: Mapping[str, bytes]) -> tuple[dict[str, bytes], str]:
    """Return the files beside the weights, and a remark if the tokenizer is unknown."""
    files = dict(kept)
    data = job_from_json(reader.manifest.job).data
    if data.tokenized and data.tokenizer == "bytes":
        return {**files, **bytes_tokenizer()}, ""
    if _TOKENIZER in files and _CONFIG not in files:
        files[_CONFIG] = _settings(json.loads(files[_TOKENIZER]))
    if any(name in files for name in (_TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")):
        return files, ""
    return files, (
        f"no tokenizer: the run keeps none (data.tokenizer = {data.tokenizer!r}); "
        "copy the tokenizer's files into the folder if a program needs them"
    )


def _settings(tokenizer: Mapping[str, object]) -> bytes:
    """Return ``tokenizer_config.json`` for a ``tokenizer.json`` without one."""
    added = tokenizer.get("added_tokens")
    contents = {token.get("content") for token in added if isinstance(token, dict)} if isinstance(added, list) else set()
    end = next((name for name in _ENDS if name in contents), None)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return json.dumps({**config, **({} if end is None else {"eos_token": end})}, indent=1).encode() + b"\n"
