"""Calls of the control plane: what a member asks the broker, what the broker answers, and what a member uploads.

Each request's docstring names the answers. ``session`` and ``upload`` are calls that stay open; their messages are ``reports``,
``commands`` and the uploads below.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from farflung.messages.array_headers import ArrayHeader
from farflung.messages.commands import JobMessage
from farflung.messages.schema import (
    ANY_SECTIONS,
    ONE_SECTION,
    UNSET,
    Amount,
    Channel,
    Count,
    Document,
    Flag,
    Label,
    LongText,
    Member,
    Message,
    Name,
    Names,
    Parting,
    Run,
    SectionedMessage,
    UnsetType,
    Version,
    field,
)

__all__ = [
    "Checking",
    "Clock",
    "ClockAnswer",
    "ControlAnswer",
    "ControlMember",
    "DashboardBytes",
    "Export",
    "Exported",
    "Granted",
    "Join",
    "Kick",
    "Kicked",
    "LinkFound",
    "LogAnswer",
    "LogRequest",
    "MeasuredTopology",
    "ProbeRound",
    "Profile",
    "Renew",
    "Resumable",
    "ResumableAnswer",
    "Resume",
    "ShardUpload",
    "StatesRequest",
    "Status",
    "StatusAnswer",
    "StopAnswer",
    "StopRequest",
    "Submit",
    "Submitted",
    "TensorPiece",
    "Unreachable",
    "UplinkFound",
    "UploadEnd",
    "UploadPiece",
    "Uploaded",
    "Watch",
    "WeightsUpload",
    "Withdraw",
    "Withdrawn",
]

#: A key, a certificate or a request for one.
Blob = Annotated[bytes, Meta(max_length=1 << 16)]


# -- requests -------------------------------------------------------------------------------------------------------------


class Join(Message, kind="join", on=Channel.REQUESTS):
    """Exchange a ticket for a certificate. Sent once, to the broker's door. The broker answers with ``Granted``.

    ``versions.check_versions`` reads ``protocol`` and ``version`` before the message is decoded: a member of another version
    may have other fields.
    """

    ticket: Name
    secret: Blob
    scope: Label
    name: Member
    role: Label
    request: Blob
    protocol: Count
    version: Label


class Renew(Message, kind="renew", on=Channel.REQUESTS):
    """Exchange a certificate for a fresh one. The broker answers with ``Granted``."""

    request: Blob
    protocol: Count
    version: Label


class Withdraw(Message, kind="withdraw", on=Channel.REQUESTS):
    """This member joined and will not begin a session. The broker answers with ``Withdrawn``."""


class Clock(Message, kind="clock", on=Channel.REQUESTS):
    """Ask for the broker's clock. The broker answers with ``ClockAnswer``."""


class Submit(JobMessage, kind="submit", on=Channel.REQUESTS, sections=ANY_SECTIONS):
    """Submit a job. The broker answers with ``Checking`` where the job resumes, then with ``Submitted``."""


class Resumable(Message, kind="resumable", on=Channel.REQUESTS):
    """Ask for the newest checkpoint of the run ``source``. The broker answers with ``ResumableAnswer``."""

    source: Name


class Resume(Message, kind="resume", on=Channel.REQUESTS):
    """Submit ``run``, which continues the run ``source`` up to ``steps``. The broker answers as to ``Submit``."""

    source: Name
    run: Run
    steps: Version | UnsetType = UNSET


class Status(Message, kind="status", on=Channel.REQUESTS):
    """Ask for one page of the members and one of the runs. The broker answers with ``StatusAnswer``.

    ``skip``: how many older runs are left out. ``after``: the members whose names come after this one (unset: the first page).
    """

    skip: Count | UnsetType = UNSET
    after: Member | UnsetType = UNSET


class LogRequest(Message, kind="log", on=Channel.REQUESTS):
    """Ask for the last ``lines`` of a log, or for what follows ``position``. The broker answers with ``LogAnswer``.

    ``name``: of a run or a worker. Empty: the broker's log.
    """

    name: Run
    lines: Annotated[int, Meta(ge=0, le=10_000)] | UnsetType = UNSET
    position: Count | UnsetType = UNSET


class Profile(Message, kind="profile", on=Channel.REQUESTS):
    """Measure the links between all workers.

    The broker answers with ``ProbeRound``, ``LinkFound``, ``Unreachable`` and ``UplinkFound``, and at last with
    ``MeasuredTopology``.
    """


class StopRequest(Message, kind="stop", on=Channel.REQUESTS):
    """End a run after its current step, or ``now``. The broker answers with ``StopAnswer``."""

    run: Run
    now: bool


class ControlMember(Message, kind="member", on=Channel.REQUESTS):
    """Tell the worker ``name`` what its owner wants. The broker answers with ``ControlAnswer``."""

    name: Member
    paused: Flag = UNSET
    parting: Parting | UnsetType = UNSET


class Kick(Message, kind="kick", on=Channel.REQUESTS):
    """Bar the member ``name``, or let it in again (``undo``). The broker answers with ``Kicked``."""

    name: Member
    undo: bool


class Watch(Message, kind="watch", on=Channel.REQUESTS):
    """Watch a run, after its first ``records`` records. The broker answers with the messages of ``watching``."""

    run: Run
    records: Count


class StatesRequest(Message, kind="states", on=Channel.REQUESTS):
    """Fetch states by name from ``source`` (``checkpoint``, ``optimizer`` or ``weights``).

    The broker answers with ``TensorPiece``.
    """

    run: Run
    source: Label
    names: Names


class Export(Message, kind="export", on=Channel.REQUESTS):
    """Ask what belongs to the weights of the newest checkpoint of a run that is over. The broker answers with ``Exported``."""

    run: Run


# -- uploads --------------------------------------------------------------------------------------------------------------


class WeightsUpload(Message, kind="weights", on=Channel.UPLOADS):
    """The first message of an upload from a client: the weights that ``run`` begins with."""

    run: Run


class ShardUpload(Message, kind="shard", on=Channel.UPLOADS):
    """The first message of an upload from a worker: its shard of the checkpoint after ``step``."""

    run: Run
    step: Count
    committed: Count
    rested: Count
    left_out: Count | UnsetType = UNSET
    attempt: Version


class UploadPiece(SectionedMessage, kind="piece", on=Channel.UPLOADS, sections=ONE_SECTION):
    """The next bytes of an upload."""


class UploadEnd(Message, kind="end", on=Channel.UPLOADS):
    """The upload is complete. The broker answers with ``Uploaded``."""


class DashboardBytes(SectionedMessage, kind="dashboard", on=(Channel.UPLOADS, Channel.ANSWERS), sections=ONE_SECTION):
    """Bytes of a connection between a client and the broker's dashboard, in the call ``dashboard``, in either direction."""


# -- answers --------------------------------------------------------------------------------------------------------------


class Granted(Message, kind="joined", on=Channel.ANSWERS):
    """Answers ``Join`` and ``Renew``: ``name`` is what the certificate says, ``port`` is where members connect."""

    certificate: Blob
    authority: Blob
    port: Annotated[int, Meta(ge=1, le=65535)]
    name: Member


class Withdrawn(Message, kind="withdrawn", on=Channel.ANSWERS):
    """Answers ``Withdraw``."""


class ClockAnswer(Message, kind="clock", on=Channel.ANSWERS):
    """Answers ``Clock``: the broker's monotonic clock, in seconds."""

    now: float


class Checking(Message, kind="checking", on=Channel.ANSWERS):
    """The broker verifies the checkpoint that a job resumes from. This can take minutes."""

    source: LongText


class Submitted(Message, kind="submitted", on=Channel.ANSWERS):
    """Answers ``Submit`` and ``Resume``.

    ``needs``: workers. ``idle`` and ``helpers``: workers that are free for stages, for help.
    """

    run: Run
    state: Label
    folder: LongText
    needs: Count
    idle: Count
    helpers: Count


class ResumableAnswer(Message, kind="resumable", on=Channel.ANSWERS):
    """Answers ``Resumable``: the checkpoint's step, the job's steps and its learning-rate schedule."""

    step: Count
    steps: Count
    schedule: Label


class StatusAnswer(Message, kind="status", on=Channel.ANSWERS):
    """Answers ``Status``.

    Entries of ``members``, ``gone`` and ``runs`` are JSON objects for people and scripts (docs/runs.md). ``more``: there are
    newer runs than these. ``more_members``: there are members whose names come after these.
    """

    version: Label
    members: list[dict[str, Any]]
    joining: list[Member]
    gone: list[dict[str, Any]]
    states: dict[Member, Label]
    runs: list[dict[str, Any]]
    more: Flag = UNSET
    more_members: Flag = UNSET


class Exported(SectionedMessage, kind="exported", on=Channel.ANSWERS, sections=ANY_SECTIONS):
    """Answers ``Export``. ``documents`` names the sections, which are compressed: the manifest, and the files of the model."""

    documents: Annotated[tuple[Label, ...], Meta(max_length=4096)]


class LogAnswer(SectionedMessage, kind="log", on=Channel.ANSWERS, sections=ONE_SECTION):
    """Answers ``LogRequest``: the lines as UTF-8. ``over``: the log is complete."""

    position: Count
    over: bool


class ProbeRound(Message, kind="round", on=Channel.ANSWERS):
    """Progress of ``Profile``: round ``number`` of ``of`` begins."""

    number: Count
    of: Count
    pairs: tuple[tuple[Member, Member], ...]


class LinkFound(Message, kind="link", on=Channel.ANSWERS):
    """Progress of ``Profile``: one direction of a link. ``alpha``: seconds. ``beta``: bytes per second."""

    source: Member = field(name="from")
    to: Member
    alpha: Amount
    beta: Amount
    relay: Member | UnsetType = UNSET


class Unreachable(Message, kind="unreachable", on=Channel.ANSWERS):
    """Progress of ``Profile``: one direction of a link does not work."""

    source: Member = field(name="from")
    to: Member
    cause: LongText


class UplinkFound(Message, kind="uplink", on=Channel.ANSWERS):
    """Progress of ``Profile``: ``name`` sends at most ``rate`` bytes per second in all."""

    name: Member
    rate: Amount


class MeasuredTopology(Message, kind="topology", on=Channel.ANSWERS):
    """The end of ``Profile``: the topology as JSON, and the workers whose uplink is shared."""

    topology: Document
    uplinks: dict[Member, Amount]


class StopAnswer(Message, kind="stopping", on=Channel.ANSWERS):
    """Answers ``StopRequest``. ``over``: the run has ended already."""

    over: bool


class ControlAnswer(Message, kind="told", on=Channel.ANSWERS):
    """Answers ``ControlMember``."""


class Kicked(Message, kind="kicked", on=Channel.ANSWERS):
    """Answers ``Kick``. ``ticket``: the one that the member joined with. ``connected``: the workers whose sessions were ended."""

    ticket: Label
    connected: Annotated[tuple[Member, ...], Meta(max_length=10_000)]


class Uploaded(Message, kind="kept", on=Channel.ANSWERS):
    """Answers an upload: the broker has stored it."""


class TensorPiece(SectionedMessage, kind="tensor", on=Channel.ANSWERS, sections=ONE_SECTION):
    """A piece of a tensor, in order. ``last``: the tensor is complete."""

    name: Name
    array: ArrayHeader
    last: bool
