"""Weights & Biases. Key and server come from its own variables (``WANDB_API_KEY``, ``WANDB_BASE_URL``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farflung.errors import InputError
from farflung.job.spec import ReportSpec
from farflung.tracking.base import TrackedRun

__all__ = ["WandbTracker"]

#: The horizontal axis, under the name that the Trainer of transformers uses.
_STEP = "train/global_step"
#: Seconds to reach the server.
_BEGIN_SECONDS = 60.0


class WandbTracker:
    """One run of Weights & Biases; offline it is a folder for ``wandb sync``."""

    def __init__(self, spec: ReportSpec) -> None:
        del spec
        self._run: Any = None

    def begin(self, run: TrackedRun) -> Mapping[str, int] | None:
        """See ``Tracker``. The run continues if the server has it."""
        try:
            import wandb
        except ImportError:
            raise InputError("the tracker 'wandb' needs the package wandb: pip install wandb") from None
        run.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.name,
                id=run.id,
                group=run.group or None,
                tags=list(run.tags) or None,
                config=dict(run.settings),
                dir=str(run.folder),
                mode="offline" if run.offline else None,
                resume="allow",
                settings=wandb.Settings(
                    console="off", silent=True, init_timeout=_BEGIN_SECONDS, disable_git=True, save_code=False
                ),
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise InputError(
                f"Weights & Biases refuses: {error}; set WANDB_API_KEY in the environment of the process that reports, or "
                "report.offline = true"
            ) from None
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP, step_sync=True)
        if self._run.settings.mode == "offline":
            return None
        found = self._run.summary.get(_STEP) if self._run.resumed else None
        return {} if found is None else {"train/loss": int(found), "eval/loss": int(found), "events/recoveries": int(found)}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.log({**values, _STEP: step})

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``. A table with one row."""
        import wandb

        self._run.log({name: wandb.Table(columns=["step", "text"], data=[[step, text]]), _STEP: step})

    def flush(self) -> None:
        """See ``Tracker``. Its own process has the values already, and writes them to disk."""

    def end(self, status: str) -> None:
        """See ``Tracker``. It waits until the server has everything."""
        self._run.finish(exit_code=int(status == "failed"))
