"""Completion by a shell: names of runs and workers, from files on this machine. Nothing uses the network."""

from __future__ import annotations

from pathlib import Path

import typer

from farflung.cli.home import broker_folder, members_folder

__all__ = ["complete_cluster", "complete_run", "complete_run_or_worker", "complete_worker"]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs of this machine's broker, or of that in ``--home`` if the option came before; the newest first."""
    chosen = next((context.params[name] for name in ("home", "folder") if context.params.get(name)), None)
    runs = broker_folder(None if chosen is None else Path(str(chosen))) / "runs"
    try:
        found = [(place.stat().st_mtime, place.name) for place in runs.iterdir() if place.is_dir()]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True) if name.startswith(incomplete)]


def complete_worker(incomplete: str) -> list[str]:
    """Return the workers that have ever run on this machine."""
    from farflung.worker.owner_limits import known_workers

    return [worker.name for worker in known_workers(members_folder()) if worker.name.startswith(incomplete)]


def complete_run_or_worker(context: typer.Context, incomplete: str) -> list[str]:
    """Return runs, then workers."""
    return [*complete_run(context, incomplete), *complete_worker(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """Return the clusters that are up."""
    from farflung.launchers.state import known_clusters

    return [name for name in known_clusters() if name.startswith(incomplete)]
