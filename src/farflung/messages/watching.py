"""What the broker sends to everybody who watches a run, from the run's beginning until it is over."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from farflung.messages.commands import Addresses, Routes
from farflung.messages.schema import (
    UNSET,
    Amount,
    Channel,
    Count,
    Document,
    Flag,
    Index,
    Item,
    Label,
    LongText,
    Member,
    Message,
    Run,
    UnsetType,
    Version,
)

__all__ = [
    "BatchItem",
    "CheckpointWritten",
    "GeneratedText",
    "JobInfo",
    "MemberReady",
    "Note",
    "Planned",
    "Planning",
    "RecordLine",
    "Result",
    "Started",
]


class JobInfo(Message, kind="job", on=Channel.WATCH):
    """The first message: the job's name, its steps, and how many workers it asks for (0: any number)."""

    name: LongText
    steps: Count
    workers: Count


class Planning(Message, kind="planning", on=Channel.WATCH):
    """The broker plans the run for ``members``."""

    members: Annotated[tuple[Member, ...], Meta(max_length=100_000)]


class Planned(Message, kind="planned", on=Channel.WATCH):
    """There is a plan. ``plan``: as JSON. ``predicted``: seconds per step. ``relays``: for a submitter that sends data."""

    plan: Document
    addresses: Addresses
    predicted: Amount
    summary: LongText
    explanation: LongText
    first_step: Count
    attempt: Version
    recovered: bool
    relays: Routes


class MemberReady(Message, kind="ready", on=Channel.WATCH):
    """A worker is prepared."""

    name: Member


class Started(Message, kind="started", on=Channel.WATCH):
    """All workers are prepared, and training begins ``seconds`` after the plan."""

    run: Run
    attempt: Version
    seconds: Amount


class RecordLine(Message, kind="record", on=Channel.WATCH):
    """One line of ``metrics.jsonl``: a step, an evaluation, a recovery."""

    line: Document


class CheckpointWritten(Message, kind="checkpoint", on=Channel.WATCH):
    """The checkpoint after ``step`` is complete."""

    step: Count


class GeneratedText(Message, kind="text", on=Channel.WATCH):
    """The text that the trained model generated."""

    text: LongText


class Note(Message, kind="note", on=Channel.WATCH):
    """A line for people. ``detail``: for experts only."""

    text: LongText
    detail: Flag = UNSET


class BatchItem(Item):
    """See ``errors.FailedBatch``."""

    step: Count
    index: Index
    evaluates: bool


class Result(Message, kind="result", on=Channel.WATCH):
    """The last message: the result as JSON, and the class of the error that ended the run (empty: no error did).

    ``batch``: on which it came, if it came while a batch was computed.
    """

    result: Document
    kind: Label
    batch: BatchItem | UnsetType = UNSET
