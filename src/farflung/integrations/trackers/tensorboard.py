"""TensorBoard: event files, written by TensorBoard's own writer. Neither PyTorch nor TensorFlow is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farflung.clock import wall_time
from farflung.errors import InputError
from farflung.job.spec import ReportSpec
from farflung.tracking.base import TrackedRun

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker:
    """Writes scalars and texts; ``tensorboard --logdir`` on a folder of runs shows them all."""

    def __init__(self, spec: ReportSpec) -> None:
        del spec
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> Mapping[str, int]:
        """See ``Tracker``."""
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise InputError("the tracker 'tensorboard' needs TensorBoard: pip install tensorboard") from None
        run.folder.mkdir(parents=True, exist_ok=True)
        stored = _stored(str(run.folder))
        self._writer = EventFileWriter(str(run.folder))
        if not stored:
            rows = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
            self.text(0, "settings", f"| {run.name} | |\n| --- | --- |\n{rows}")
        return stored

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]))

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text import metadata

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        about = metadata.create_summary_metadata(display_name=name, description="")
        self._add(step, Summary(value=[Summary.Value(tag=f"{name}/text_summary", metadata=about, tensor=tensor)]))

    def flush(self) -> None:
        """See ``Tracker``."""
        self._writer.flush()

    def end(self, status: str) -> None:
        """See ``Tracker``."""
        del status
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=wall_time(), step=step, summary=summary))


def _stored(folder: str) -> dict[str, int]:
    """Return the highest step of each scalar in the event files in ``folder``."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(folder, size_guidance={SCALARS: 1}).Reload()  # of each scalar the last one
    return {tag: events.Scalars(tag)[-1].step for tag in events.Tags()[SCALARS]}
