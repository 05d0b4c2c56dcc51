"""Values of steps as a text."""

from __future__ import annotations

import base64
import math
import zlib

import pytest

from farflung.errors import InputError
from farflung.job import from_json, make_job, rates, to_json
from farflung.job.value_tables import MOST_VALUES, read_values, write_values


def test_round_trip() -> None:
    values = (0.1, 1e-300, math.pi, 0.0)
    assert read_values(write_values(values), 2) == values


def test_rows_of_groups_and_of_settings() -> None:
    document: dict[str, object] = {
        "steps": 2,
        "optimizer": {"groups": [{"match": "a"}]},
        "schedule": {
            "name": "values",
            "values": {"lr": write_values((1.0, 2.0, 3.0, 4.0)), "weight_decay": write_values((5.0, 6.0))},
        },
    }
    job = from_json(to_json(make_job(document)))
    assert [rates(job, step) for step in (0, 1, 9)] == [(1.0, 2.0, 5.0, 6.0), (3.0, 4.0, 5.0, 6.0), (3.0, 4.0, 5.0, 6.0)]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


LONG = packed(bytes(8 * MOST_VALUES + 16))
CUT = write_values((1.0, 2.0))[:-8]


@pytest.mark.parametrize("text", ["", "%", "AAAA", packed(b""), packed(b"1234567"), packed(bytes(24)), LONG, CUT])
def test_damaged_values(text: str) -> None:
    with pytest.raises(InputError, match=r"schedule.values must hold float64 values for 2 groups in each step"):
        read_values(text, 2)


def test_values_that_are_no_numbers() -> None:
    with pytest.raises(InputError, match=r"schedule.values must hold finite numbers"):
        read_values(packed(b"\xff" * 8), 1)
    with pytest.raises(InputError, match=r"a schedule has the value nan: every value must be a finite number"):
        write_values((1.0, math.nan))


def test_too_many_values() -> None:
    with pytest.raises(InputError, match=r"a schedule has \d+ values \(steps times groups\), at most \d+ are allowed: name it"):
        write_values([0.0] * (MOST_VALUES + 1))


def test_a_job_file_names_its_schedule() -> None:
    with pytest.raises(InputError, match=r"schedule.name = 'values' needs the values that a call of farflung.train writes"):
        make_job({"schedule": {"name": "values"}})
