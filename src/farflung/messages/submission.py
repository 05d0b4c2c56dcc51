"""A submitted job as one frame: the job, its graphs as documents, and what belongs to it. No code, nothing unpickled."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from farflung.checkpoint import MODEL_FILES
from farflung.cluster import Topology
from farflung.errors import GraphError, VersionError, WireError
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.job import to_json as job_to_json
from farflung.messages.calls import Submit
from farflung.messages.commands import AttemptMessage, JobMessage
from farflung.messages.document_bounds import BOUNDS, check_depth, count_items
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode_as, encode
from farflung.optim import check_optimizer
from farflung.plan.model import Plan
from farflung.wire.frames import decode_frame, encode_frame

__all__ = ["BUNDLE_VERSION", "Bundle", "parses_quickly", "plan_of", "squeeze", "unpack", "unsqueeze", "with_plan"]

BUNDLE_VERSION = 1
#: The names of documents that are files of the model begin with this.
_FILE = "file-"
#: The name of the plan among the documents of an attempt.
_PLAN = "plan"


def squeeze(text: str) -> bytes:
    """A document, compressed for the wire."""
    return zlib.compress(text.encode("utf-8"), 6)


def unsqueeze(data: bytes | memoryview, limit: int = BOUNDS.bytes) -> str:
    """What ``squeeze`` made.

    Raises:
        WireError: it is damaged, or larger than ``limit`` bytes when unpacked.
    """
    return _as_text(unpack(data, limit))


def unpack(data: bytes | memoryview, limit: int) -> bytes:
    """The bytes of a compressed document of at most ``limit`` bytes.

    Raises:
        WireError: it is damaged or larger.
    """
    if limit <= 0:  # zlib takes 0 for no limit at all
        raise WireError(f"the documents of a job are together larger than {BOUNDS.bytes} bytes")
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(bytes(data), limit)
    except zlib.error as error:
        raise WireError(f"a compressed document is damaged: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise WireError(f"a compressed document is cut, or larger than {limit} bytes")
    return body


def _as_text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a compressed document is no text: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Everything that decides what a run computes, and the topology it was submitted with.

    ``graphs``: training graphs by number of samples in the micro-batch. ``emulate``: shape the links as ``topology`` says (for
    demonstrations and tests on one machine). ``notes``: what an export needs later (JSON texts by name). ``files``: tokenizer and
    generation settings of the model, by file name; the broker keeps them, workers do not get them.
    """

    run: str
    job: JobSpec
    graphs: Mapping[int, Graph]
    eval_graph: Graph | None = None
    generate_graph: Graph | None = None
    topology: Topology | None = None
    emulate: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The training graph of the largest micro-batch."""
        return self.graphs[max(self.graphs)]

    def to_message(self) -> Submit:
        """Return the request that submits the bundle."""
        documents = {"job": job_to_json(self.job)}
        documents |= {f"graph-{rows}": graph.to_json() for rows, graph in self.graphs.items()}
        for name, graph in (("eval", self.eval_graph), ("generate", self.generate_graph)):
            if graph is not None:
                documents[name] = graph.to_json()
        if self.topology is not None:
            documents["topology"] = self.topology.to_json()
        packed = {name: squeeze(text) for name, text in documents.items()}
        packed |= {f"{_FILE}{name}": zlib.compress(data, 6) for name, data in self.files.items()}
        return Submit(
            bundle=BUNDLE_VERSION,
            run=self.run,
            documents=tuple(packed),
            emulate=self.emulate,
            notes=dict(self.notes),
            sections=tuple(packed.values()),
        )

    def to_bytes(self) -> bytes:
        """Return the bundle as bytes for a file."""
        return b"".join(encode_frame(encode(self.to_message())))

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """Read what ``to_bytes`` wrote; raises as ``of``."""
        return cls.of(decode_as(decode_frame(data), Channel.REQUESTS, Submit))

    @classmethod
    def of(cls, message: JobMessage) -> Bundle:
        """Read and check a bundle that nobody vouches for. A plan among the documents is left out (``plan_of``).

        Raises:
            VersionError: another version wrote it.
            GraphError, InputError, WireError: a document is corrupt or not allowed.
        """
        if message.bundle != BUNDLE_VERSION:
            raise VersionError(
                f"this job was packed by version {message.bundle} of the format, this side speaks {BUNDLE_VERSION}; "
                "install the same farflung on both machines"
            )
        if len(message.documents) != len(message.sections):
            raise WireError("a job's documents and their names do not agree")
        pairs = [pair for pair in zip(message.documents, message.sections, strict=True) if pair[0] != _PLAN]
        packed = _unpack_all(pairs)
        files = {name.removeprefix(_FILE): body for name, body in packed.items() if name.startswith(_FILE)}
        _check_files(files)
        documents = {name: body for name, body in packed.items() if not name.startswith(_FILE)}
        _check_documents(documents)
        texts = {name: _as_text(body) for name, body in documents.items()}
        graphs = {_rows(name): Graph.from_json(body) for name, body in texts.items() if name.startswith("graph-")}
        if "job" not in texts or not graphs:
            raise GraphError("a submitted job needs a job document and at least one training graph")
        job = job_from_json(texts["job"])
        _check_graphs(graphs, job)
        check_optimizer(job)
        return cls(
            run=message.run,
            job=job,
            graphs=graphs,
            eval_graph=Graph.from_json(texts["eval"]) if "eval" in texts else None,
            generate_graph=Graph.from_json(texts["generate"]) if "generate" in texts else None,
            topology=Topology.from_json(texts["topology"]) if "topology" in texts else None,
            emulate=message.emulate,
            notes=message.notes,
            files=files,
        )


def parses_quickly(message: JobMessage) -> bool:
    """Return whether the documents of ``message`` are so small that reading them costs little.

    Raises:
        WireError: they are beyond all bounds.
    """
    packed = _unpack_all(zip(message.documents, message.sections, strict=False))
    return count_items(packed.values()) <= BOUNDS.small_items and sum(map(len, packed.values())) <= BOUNDS.small_bytes


def with_plan(message: AttemptMessage, plan_json: str) -> AttemptMessage:
    """Return ``message`` with the plan as its last document."""
    documents, sections = (*message.documents, _PLAN), (*message.sections, squeeze(plan_json))
    return replace(message, documents=documents, sections=sections)


def plan_of(message: AttemptMessage) -> Plan:
    """Return the plan of an attempt.

    Raises:
        WireError: there is none, or it is damaged.
        PlanError: it is malformed.
    """
    if message.documents[-1:] != (_PLAN,) or len(message.sections) != len(message.documents):
        raise WireError("the broker sent no plan with the run; install the same farflung on both machines")
    return Plan.from_json(unsqueeze(message.sections[-1]))


def _unpack_all(packed: Iterable[tuple[str, memoryview | bytes]]) -> dict[str, bytes]:
    """The documents by name; together they have the limit that one alone has."""
    bodies: dict[str, bytes] = {}
    left = BOUNDS.bytes
    for name, section in packed:
        if name in bodies:
            raise WireError(f"a job's document {name!r:.60} stands twice")
        bodies[name] = unpack(section, BOUNDS.unpacked(len(section), left))
        left -= len(bodies[name])
    return bodies


def _check_documents(documents: Mapping[str, bytes]) -> None:
    """Bound what parsing ``documents`` costs."""
    count_items(documents.values())
    for name, body in documents.items():
        check_depth(name, body)


def _check_files(names: Iterable[str]) -> None:
    """Files are written under these names, so only those of a model are accepted."""
    strange = sorted(name for name in names if name not in MODEL_FILES)
    if strange:
        raise WireError(f"a job can't bring a file called {strange[0]!r:.60}: known are {', '.join(sorted(MODEL_FILES))}")


def _rows(name: str) -> int:
    rows = name.removeprefix("graph-")
    if not (rows.isascii() and rows.isdecimal() and len(rows) < 10 and int(rows) > 0):
        raise WireError(f"a job's document {name!r:.60} must say its number of samples, e.g. graph-4")
    return int(rows)


def _check_graphs(graphs: Mapping[int, Graph], job: JobSpec) -> None:
    """There is a graph for each size of micro-batch that the job has.

    Raises:
        GraphError: one is missing.
    """
    missing = [rows for rows in job.micro_batch_sizes if rows not in graphs]
    if missing:
        known = ", ".join(map(str, sorted(graphs)))
        raise GraphError(f"the job has micro-batches of {missing[0]} samples, but its graphs are for {known}")
