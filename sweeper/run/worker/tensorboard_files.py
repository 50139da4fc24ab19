"""Files of a trial for TensorBoard, rewritten from the database's records.

The database contains each epoch once, even if an attempt trained it again. So the whole file is
rewritten: the new one is written under a temporary name and renamed, and then the old one is removed. It
has a few hundred bytes per epoch. A kill at any moment leaves one complete file, or two.

Readers that are open meanwhile, and readers of two files, show no point twice either: each file starts
with ``SessionLog.START`` at step 0, at which readers drop earlier points. TensorBoard's own modules write
the format, because a worker must not import TensorFlow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.errors import DefinitionError
from sweeper.records.results import TrialRecord
from sweeper.support.installation import install_command

_NAMES = "events.out.tfevents.*.sweeper"
_EVERY = 10.0
"""Seconds between two rewrites while a trial trains."""


def check_tensorboard() -> None:
    """Check that TensorBoard's modules are installed."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        msg = (
            "tensorboard=True needs the package 'tensorboard', which is not installed; "
            f"{install_command('tensorboard')}, or leave it out"
        )
        raise DefinitionError(msg) from error


@dataclass
class TrialSummaries:
    """TensorBoard files of one trial, in ``directory``."""

    directory: Path
    _written: float = field(default=-math.inf, init=False)

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last write while the trial trains."""
        return time.monotonic() - self._written >= _EVERY

    def write(self, trial: TrialRecord) -> None:
        """Replace the files with the record's content; if that fails, the old ones remain."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.directory.mkdir(parents=True, exist_ok=True)
        old_files = list(self.directory.glob(_NAMES))
        # Readers read files in the order of their names.
        path = self.directory / f"events.out.tfevents.{time.time_ns():020d}.sweeper"
        unfinished = self.directory / f".{path.name}"
        try:
            with unfinished.open("wb") as file:
                writer = RecordWriter(file)
                for event in _events(trial):
                    writer.write(event.SerializeToString())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        for old in old_files:
            old.unlink(missing_ok=True)
        self._written = time.monotonic()


def _events(trial: TrialRecord) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    began, ended = _span(trial)
    # TensorBoard does not support None.
    params = {name: "None" if value is None else value for name, value in trial.params.items()}
    hparams = hparams_pb(params, trial_id=f"trial {trial.number}", start_time_secs=began)
    yield Event(wall_time=began, file_version="brain.Event:2")
    yield Event(wall_time=began, step=0, session_log=SessionLog(status=SessionLog.START))
    yield Event(wall_time=began, step=0, summary=hparams)
    apart = (ended - began) / max(len(trial.epochs), 1)
    for count, epoch in enumerate(trial.epochs, 1):
        values = [Summary.Value(tag=n, simple_value=v) for n, v in epoch.metrics.items()]
        wall_time = began + count * apart
        yield Event(wall_time=wall_time, step=epoch.epoch, summary=Summary(value=values))
    if trial.state in ("complete", "pruned", "failed"):
        last = trial.epochs[-1].epoch if trial.epochs else 0
        yield Event(wall_time=ended, step=last, summary=_end(trial, ended))


def _end(trial: TrialRecord, ended: float) -> Any:
    """Return the same as ``hparams.summary.session_end_pb``, which imports TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    failed = trial.state == "failed"
    status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


def _span(trial: TrialRecord) -> tuple[float, float]:
    """Return the start of the first attempt and the latest known time of the trial, in seconds."""
    if not trial.attempts:
        return 0.0, 0.0
    moments = [m for a in trial.attempts for m in (a.started_at, a.ended_at) if m is not None]
    latest = max(moments).timestamp()
    if trial.state == "running":
        latest = max(latest, time.time())
    return moments[0].timestamp(), latest
