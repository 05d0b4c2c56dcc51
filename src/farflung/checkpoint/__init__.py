"""Checkpoints: sharded safetensors with a manifest, resumed under any partition; weights from and to safetensors files.

- ``blob``: bytes by range. ``safetensors``: the format. ``manifest``: what makes a checkpoint valid.
- ``store``: checkpoints in a folder. ``objects``: in an object store. ``remote_files``: files of a folder behind a URL.
- ``reader``: reads tensors under any partition. ``weights``: first weights from files.
- ``export``, ``model_export``, ``model_files``: a checkpoint for other programs.
- ``adapters``: LoRA and DoRA adapters. ``quantized_base``: a base in 8 or 4 bits.
"""

from __future__ import annotations

from farflung.checkpoint.adapters import Adapters, export_adapters
from farflung.checkpoint.blob import Blob, FetchedBlob, FileBlob
from farflung.checkpoint.export import export_file, export_folder
from farflung.checkpoint.manifest import Manifest, ShardRecord, TensorRecord, check_resume
from farflung.checkpoint.model_export import export_model
from farflung.checkpoint.model_files import MODEL_FILES, ModelFiles, bytes_tokenizer, find_model_files
from farflung.checkpoint.objects import ObjectCheckpoints
from farflung.checkpoint.reader import CheckpointReader, FetchedReader
from farflung.checkpoint.safetensors import SafetensorsIndex, TensorEntry
from farflung.checkpoint.store import CheckpointStore, checkpoint_step, encode_shard, locate, pack
from farflung.checkpoint.weights import Match, Weights, match_states

__all__ = [
    "MODEL_FILES",
    "Adapters",
    "Blob",
    "CheckpointReader",
    "CheckpointStore",
    "FetchedBlob",
    "FetchedReader",
    "FileBlob",
    "Manifest",
    "Match",
    "ModelFiles",
    "ObjectCheckpoints",
    "SafetensorsIndex",
    "ShardRecord",
    "TensorEntry",
    "TensorRecord",
    "Weights",
    "bytes_tokenizer",
    "check_resume",
    "checkpoint_step",
    "encode_shard",
    "export_adapters",
    "export_file",
    "export_folder",
    "export_model",
    "find_model_files",
    "locate",
    "match_states",
    "pack",
]
