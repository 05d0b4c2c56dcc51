"""What a waiting run waits for, from the status of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farflung.client.control import ControlClient
from farflung.units import counted

__all__ = ["waiting_line", "waiting_reason"]


def waiting_reason(run: Mapping[str, Any]) -> str:
    """Return what a run waits for (empty: it does not wait)."""
    if run["state"] != "waiting" or "needs" not in run:
        return ""
    ahead = f", after {counted(run['ahead'], 'other run')}" if run["ahead"] else ""
    if absent := run.get("absent"):
        return f"waits for {', '.join(absent)} to return{ahead}"
    barred = f" (not {', '.join(names)}: join --only)" if (names := run.get("barred")) else ""
    return f"needs {counted(run['needs'], 'idle worker')}{barred}{ahead}"


def waiting_line(client: ControlClient, name: str) -> str:
    """Ask the broker what the run ``name`` waits for, as a line (empty: it does not wait, or there is no such run)."""
    runs = client.status()["runs"]
    assert isinstance(runs, list)
    reason = next((waiting_reason(run) for run in runs if run["run"] == name), "")
    return f"{name}: waiting; {reason}" if reason else ""
