"""What a measurement with JAX compiles, and when."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")


def test_a_common_measurement_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for half a second. A stage takes longer to compile."""
    import jax

    from farflung.engines.jax.engine import JaxEngine

    engine = JaxEngine()
    report = engine.measure("cpu")
    compiled: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        del seconds
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert 0 < engine.share("cpu", report.reference_seconds) <= 1
        assert [event for event in compiled if "compile" in event] == []
        jax.jit(lambda x: x * 3)(1.0)
        assert any("compile" in event for event in compiled)  # the listener hears compilations
    finally:
        jax.monitoring.clear_event_listeners()
