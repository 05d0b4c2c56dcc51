"""Commands plan the same small models again and again, and have time to compare all planners."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farflung.api import plan_explanation
from tests.support.models.captured_models import captured_once


@pytest.fixture(scope="module", autouse=True)
def models_are_captured_once() -> Iterator[None]:
    with captured_once():
        yield


@pytest.fixture(scope="module", autouse=True)
def patient_explanations() -> Iterator[None]:
    """On a busy machine, what is compared within the time limit would depend on the load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_explanation, "_PATIENCE", 1e6)
        yield
