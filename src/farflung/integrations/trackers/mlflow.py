"""MLflow. Server and login come from its own variables (``MLFLOW_TRACKING_URI``, ``MLFLOW_TRACKING_USERNAME``, ...)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from farflung.clock import wall_time
from farflung.errors import InputError
from farflung.job.spec import ReportSpec
from farflung.tracking.base import TrackedRun

__all__ = ["MlflowTracker"]

#: A tag of the run, by which a later process finds the run.
_TAG = "farflung.run"
#: Metrics and parameters of one request, and characters of a value: limits of MLflow's REST API.
_METRICS, _PARAMETERS, _CHARACTERS = 1000, 100, 500
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
#: The report is tried again later anyway, so that a server that is down need not be waited for as long as MLflow does.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
#: Its lines show the address of the server, which may contain a password.
_QUIET = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}


class MlflowTracker:
    """One run of an MLflow experiment, which has the name of the project."""

    def __init__(self, spec: ReportSpec) -> None:
        del spec
        self._client: Any = None
        self._run = ""
        self._metrics: list[Any] = []
        #: The tags with texts, by key.
        self._texts: dict[str, str] = {}

    def begin(self, run: TrackedRun) -> Mapping[str, int]:
        """See ``Tracker``."""
        for name, value in {**_PATIENCE, **_QUIET}.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise InputError("the tracker 'mlflow' needs the package mlflow: pip install mlflow-skinny") from None
        self._client = client = MlflowClient()
        experiment = client.get_experiment_by_name(run.project)
        number = client.create_experiment(run.project) if experiment is None else experiment.experiment_id
        found = client.search_runs([number], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._texts = {key: text for key, text in found[0].data.tags.items() if "/" in key}
            client.update_run(self._run, status="RUNNING")
            return {name: self._last(name) for name in found[0].data.metrics}
        tags = {_TAG: run.id, **({"group": run.group} if run.group else {}), **dict.fromkeys(run.tags, "")}
        self._run = client.create_run(number, tags=tags, run_name=run.name).info.run_id
        self._settings(run)
        return {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        from mlflow.entities import Metric

        now = int(wall_time() * 1000)
        self._metrics += [Metric(name, float(value), now, step) for name, value in values.items()]

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``. A tag, since not every server takes files."""
        key = f"{name}/{step}"
        before = f"{self._texts[key]}\n" if key in self._texts else ""
        self._texts[key] = f"{before}{text}"[:_CHARACTERS]
        self._client.set_tag(self._run, key, self._texts[key])

    def flush(self) -> None:
        """See ``Tracker``. A request is stored whole or not at all."""
        for part in _parts(self._metrics, _METRICS):
            self._client.log_batch(self._run, metrics=part)
        self._metrics.clear()

    def end(self, status: str) -> None:
        """See ``Tracker``."""
        self._client.set_terminated(self._run, _STATUS[status])

    def _settings(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        settings = [Param(name, str(value)[:_CHARACTERS]) for name, value in run.settings.items()]
        for part in _parts(settings, _PARAMETERS):
            self._client.log_batch(self._run, params=part)

    def _last(self, name: str) -> int:
        return max(int(metric.step) for metric in self._client.get_metric_history(self._run, name))


def _parts(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    return [items[first : first + most] for first in range(0, len(items), most)]
