"""``docs/golden.json``, by which programs in other languages check themselves, is what this one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.codecs import Payload, decode_payload, get_codec

FOUND = json.loads((Path(__file__).parents[3] / "docs" / "golden.json").read_text(encoding="utf-8"))["payloads"]


@pytest.mark.parametrize("entry", FOUND, ids=[f"{one['codec']}-{index}" for index, one in enumerate(FOUND)])
def test_golden_payloads_are_made_and_read(entry: dict[str, Any]) -> None:
    payload = Payload.from_bytes(bytes.fromhex(entry["whole"]))
    head = entry["payload"]
    assert (payload.codec, payload.dtype, list(payload.shape), dict(payload.fields)) == (
        head["codec"],
        head["dtype"],
        head["shape"],
        head["fields"],
    )
    assert [bytes(section).hex() for section in payload.sections] == entry["sections"]
    decoded = decode_payload(payload)
    wanted = np.frombuffer(bytes.fromhex(entry["decoded"]), np.dtype(head["dtype"]).newbyteorder("<"))
    np.testing.assert_allclose(decoded.reshape(-1), wanted, rtol=1e-6 if head["codec"] == "lowrank" else 0)
    if entry["input"] is not None:
        array = np.frombuffer(bytes.fromhex(entry["input"]), decoded.dtype).reshape(decoded.shape)
        assert get_codec(entry["codec"], **entry["parameters"]).encode(array).to_bytes().hex() == entry["whole"]


def test_every_form_of_payload_has_a_golden_one() -> None:
    assert {one["payload"]["codec"] for one in FOUND} == {"identity", "cast", "quantized", "topk", "randomk", "lowrank"}
