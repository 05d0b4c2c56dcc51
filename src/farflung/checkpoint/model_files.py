"""The small files that stand beside a model's weights: tokenizer, chat template, generation settings.

A job's submitter reads the files from the folder of its model, the broker keeps them in the run's folder, and exports write them
beside the weights. A job that trains on plain bytes needs no such file: its tokenizer is written down here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from farflung.checkpoint.store import write_file
from farflung.errors import InputError
from farflung.job import JobSpec
from farflung.object_store import is_remote

__all__ = ["MODEL_FILES", "TOKENIZER_FILES", "ModelFiles", "bytes_tokenizer", "find_model_files"]

#: Files of a tokenizer, as ``save_pretrained`` of the ``transformers`` library names them.
TOKENIZER_FILES = frozenset(
    (
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt"),
        *(
            "merges.txt",
            "tokenizer.model",
            "spiece.model",
            "sentencepiece.bpe.model",
            "chat_template.jinja",
            "chat_template.json",
        ),
    )
)
#: Files of what prepares text, images, sound and video, and of the settings for generation.
_SETTINGS = frozenset(
    ("generation_config.json", "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
)
#: All files that a run keeps of its model; no other name is accepted from the network.
MODEL_FILES = TOKENIZER_FILES | _SETTINGS
#: Bytes of one file: the largest tokenizers have 33 MB.
_LARGEST = 64 << 20
_TOKENIZER = "tokenizer.json"


class ModelFiles:
    """The files of a run's model, in the sub-folder ``model`` of the run's folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "model"

    def write(self, files: Mapping[str, bytes]) -> None:
        """Keep ``files`` (name -> content)."""
        for name, data in files.items():
            write_file(self.folder / name, [data])

    def read(self) -> dict[str, bytes]:
        """Name -> content; empty where the run keeps none."""
        found = (self.folder / name for name in sorted(MODEL_FILES))
        return {path.name: path.read_bytes() for path in found if path.is_file()}

    @property
    def tokenizer(self) -> Path | None:
        """The ``tokenizer.json`` (None: there is none)."""
        path = self.folder / _TOKENIZER
        return path if path.is_file() else None


def find_model_files(job: JobSpec, base: Path) -> dict[str, bytes]:
    """The files of the job's model on this machine (name -> content); nothing is downloaded.

    The model's folder is ``model.args.folder``, or the one that ``weights.path`` of the submitter lies in. The tokenizer of a
    job on text is the one of ``data.tokenizer``: where that is another one than the folder's, the folder's is left out. A
    ``data.tokenizer`` that lies on the workers alone is taken to be the folder's.

    Args:
        job: the job.
        base: the job file's folder, from which relative paths start.

    Raises:
        InputError: a file can't be read, or is too large for a file of this kind.
    """
    folder = _model_folder(job, base)
    found = {} if folder is None else {name: _read(folder / name) for name in sorted(MODEL_FILES) if (folder / name).is_file()}
    if not job.data.tokenized:
        return found
    path = base / Path(job.data.tokenizer).expanduser()
    if path.is_dir():
        return {**found, **{name: _read(path / name) for name in sorted(TOKENIZER_FILES) if (path / name).is_file()}}
    plain = job.data.tokenizer in ("bytes", "chars")
    own = _read(path) if not plain and path.is_file() else None
    if plain or (own is not None and own != found.get(_TOKENIZER)):
        found = {name: data for name, data in found.items() if name not in TOKENIZER_FILES}
    return found if own is None else {**found, _TOKENIZER: own}


def bytes_tokenizer() -> dict[str, bytes]:
    """Files of a tokenizer for the ``transformers`` library whose ids are the bytes of UTF-8: ``data.tokenizer = "bytes"``.

    The library's byte-level model spells each byte as a printable character: those that are printable in Latin-1 stand for
    themselves, the others for the characters from U+0100 on (Radford et al., 2019, as in the library).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {**{byte: chr(byte) for byte in printable}, **{byte: chr(0x100 + index) for index, byte in enumerate(others)}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {spelled[byte]: byte for byte in range(256)}, "merges": []},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return {_TOKENIZER: _json(document), "tokenizer_config.json": _json(config)}


def _model_folder(job: JobSpec, base: Path) -> Path | None:
    named = job.model.args.get("folder") if job.model is not None else None
    if isinstance(named, str):
        return base / Path(named).expanduser()
    if job.weights.source == "file" and job.weights.home == "submitter" and not is_remote(job.weights.path):
        path = base / Path(job.weights.path).expanduser()
        return path if path.is_dir() else path.parent
    return None


def _read(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise InputError(f"{path} has {size} bytes, at most {_LARGEST} are kept with a run: is it the file of a tokenizer?")
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} can't be read: {error.strerror}; check the file, or remove it from the model's folder"
        ) from None


def _json(document: object) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"
