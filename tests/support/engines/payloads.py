"""What an engine encodes of a tensor, against what a sender thread encodes of the array."""

from __future__ import annotations

import torch

from farflung.codecs.base import Codec
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs import encode_tensor
from farflung.messages.arrays import encode_array, packed_payload

__all__ = ["encodes_as_the_host"]


def encodes_as_the_host(codec: Codec, tensor: torch.Tensor, device: str = "cpu") -> bool:
    """Whether the engine encodes ``tensor``; raises where its layout or one byte differs from the host's."""
    found = encode_tensor(codec, tensor.to(device))
    if found is None:
        return False
    made, wanted = packed_payload(*found), encode_array(to_array(tensor), codec)
    assert (made.array, made.payload) == (wanted.array, wanted.payload)
    assert [bytes(section) for section in made.sections] == [bytes(section) for section in wanted.sections]
    return True
