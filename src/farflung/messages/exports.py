"""What belongs to the weights of a run, as one message: the manifest of its checkpoint, and the files of its model."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from farflung.checkpoint import MODEL_FILES, Manifest
from farflung.errors import WireError
from farflung.messages.calls import Exported
from farflung.messages.document_bounds import BOUNDS
from farflung.messages.submission import unpack, unsqueeze

__all__ = ["exported", "read_exported"]

_MANIFEST = "manifest"


def exported(manifest: Manifest, files: Mapping[str, bytes]) -> Exported:
    """Return the message about a checkpoint and the ``files`` of the run's model, by name."""
    packed = {name: zlib.compress(data, 6) for name, data in ((_MANIFEST, manifest.to_json().encode()), *files.items())}
    return Exported(documents=tuple(packed), sections=tuple(packed.values()))


def read_exported(message: Exported) -> tuple[Manifest, dict[str, bytes]]:
    """Read what ``exported`` made.

    Raises:
        WireError: documents are damaged, too large, or not allowed.
        CheckpointError: the manifest is damaged.
    """
    sections = dict(zip(message.documents, message.sections, strict=False))
    if len(sections) != len(message.sections) or _MANIFEST not in sections or not sections.keys() <= MODEL_FILES | {_MANIFEST}:
        raise WireError("an export has a manifest and files of a model; install the same farflung on both machines")
    manifest = Manifest.from_json(unsqueeze(sections.pop(_MANIFEST)))
    return manifest, {name: unpack(data, BOUNDS.bytes) for name, data in sections.items()}
