"""Decoders of documents: jobs, graphs, plans, topologies, checkpoints, records, tickets, and texts of fields."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.decoders.target import Form, Target
from farflung.checkpoint import FetchedBlob, Manifest, SafetensorsIndex, ShardRecord, TensorRecord
from farflung.checkpoint.safetensors import encode
from farflung.cluster import Topology
from farflung.cluster.network import Network
from farflung.codecs.codec_strings import read_codec, read_memory
from farflung.engines.base import Array
from farflung.errors import DataError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, TensorSpec
from farflung.ids import content_hash
from farflung.job import JobSpec, from_json, make_job, to_json
from farflung.launchers.host_requests import ListProcesses, ShowLog, read_processes, read_request
from farflung.launchers.host_requests import encode as encode_request
from farflung.messages.calls import Submit
from farflung.messages.submission import BUNDLE_VERSION, Bundle, parses_quickly, squeeze, unsqueeze
from farflung.optim import read_rules
from farflung.plan import LinkPlan, Plan, Stage
from farflung.plan.parts import SyncLayer, SyncPlan
from farflung.schedules.base import Action
from farflung.security import Ticket, split_address
from farflung.security.authority import CertificateAuthority
from farflung.security.certificates import make_request, new_key, read_caller
from farflung.telemetry import StepRecord, read_record
from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.records import RelayedRecord, RunResult
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["TARGETS", "example_job"]

# -- what a submission holds --------------------------------------------------------------------------------------------


def _graph() -> Graph:
    graph = GraphBuilder("net")
    graph.input("x", "float32", (2, 4))
    graph.add("a", "Linear", "x", in_features=4, out_features=3)
    graph.add("b", "GELU", "a")
    graph.add("c", "Linear", "b", in_features=3, out_features=2)
    graph.label("y", "int64", (2,))
    graph.add("loss", "CrossEntropyLoss", "c", "y")
    return graph.build()


def example_job() -> JobSpec:
    document: dict[str, Any] = {
        "steps": 4,
        "micro_batch_sizes": [2, 2],
        "data": {"kind": "text", "path": "corpus"},
        "optimizer": {"name": "adamw", "lr": 1e-3, "groups": [{"match": "bias$", "weight_decay": 0.0}]},
        "schedule": {"name": "cosine", "warmup": 1},
        "plan": {"replicas": 2},
    }
    return make_job(document)


def _decode_graph(text: str) -> None:
    """As a submission is read and a worker cuts it; what was read is written and read again."""
    graph = Graph.from_json(text)
    cut(graph, [(0, len(graph.ops))])
    if Graph.from_json(graph.to_json()).hash != graph.hash:
        raise AssertionError("a graph changes when it is written and read")


def _decode_job(text: str) -> None:
    job = from_json(text)
    if to_json(from_json(to_json(job))) != to_json(job):
        raise AssertionError("a job changes when it is written and read")


def _decode_job_file(text: bytes) -> None:
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        raise InputError("not TOML") from None
    make_job(document)


_JOB_FILE = b"""steps = 4
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = { vocab = 64, layers = 1 }
[data]
kind = "text"
path = "corpus"
[plan]
replicas = 2
[verify]
share = 0.01
"""


def _decode_bundle(documents: Any) -> None:
    """``{document: its text}``, packed as a client does; cross-checks between documents come after all are read."""
    if not isinstance(documents, dict):
        raise InputError("not an input")
    texts = {str(name): body if isinstance(body, str) else json.dumps(body) for name, body in documents.items()}
    packed = [squeeze(body.encode("utf-8", "replace").decode()) for body in texts.values()]
    message = Submit(bundle=BUNDLE_VERSION, run="r", documents=tuple(texts), emulate=False, notes={}, sections=tuple(packed))
    parses_quickly(message)
    bundle = Bundle.of(message)
    Bundle.of(bundle.to_message())


def _bundles() -> Iterator[Any]:
    texts = {"job": to_json(example_job()), "graph-2": _graph().to_json()}
    bodies = {name: json.loads(text) for name, text in texts.items()}
    yield bodies
    yield {**bodies, "eval": bodies["graph-2"], "topology": json.loads(Topology.preset("local4-two-regions").to_json())}
    yield {**bodies, "file-tokenizer_config.json": "{}"}


def _plan() -> Plan:
    graph = _graph()
    middle = len(graph.ops) // 2
    stages = (
        Stage(index=0, start=0, stop=middle, device="a"),
        Stage(index=1, start=middle, stop=len(graph.ops), device="b"),
    )
    links = (LinkPlan(source=0, target=1),)
    return Plan(graph_hash=graph.hash, planner="hand", stages=stages, links=links, micro_batch_sizes=(2, 2))


def _plans() -> Iterator[str]:
    layer = SyncLayer(parameters=("a.weight",), bp_seconds=0.1, comm_seconds=0.5)
    plan = _plan()
    yield plan.to_json()
    yield replace(plan, sync=SyncPlan(strategy="robust", settings=(("faulty", 1),), layers=((layer,), (layer,)))).to_json()


def _decode_plan(text: str) -> None:
    plan = Plan.from_json(text)
    if Plan.from_json(plan.to_json()) != plan:
        raise AssertionError("a plan changes when it is written and read")
    _ = plan.devices, plan.bounds


def _rules() -> Iterator[str]:
    import torch

    from farflung.frontends.optimizers.capture import Trained, capture_rules
    from farflung.optim import write_rules

    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    for kind in (torch.optim.NAdam, torch.optim.Adadelta):
        optimizer = kind([parameter])
        settings = optimizer.param_groups[0]
        item = Trained(group=0, optimizer=optimizer, settings=settings, dtype=torch.float32, shape=(3, 2))
        yield write_rules(capture_rules([item]))


def _decode_topology_file(data: bytes) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("not a text") from None
    Network.from_text(text)


def _decode_topology(text: str) -> None:
    topology = Topology.from_json(text)
    Topology.from_json(topology.to_json())


_TOPOLOGY_FILE = b"""name = "two"
[[device]]
name = "a"
memory = "8 GB"
speed = "1 TFLOP/s"
region = "x"
[[device]]
name = "b"
count = 2
memory = "8 GB"
speed = "2e12 FLOP/s"
[default]
latency = "20 ms"
bandwidth = "10 Mbit/s"
[[link]]
from = "a"
to = "x"
latency = "5 ms"
bandwidth = "100 Mbit/s"
"""

# -- checkpoints and records --------------------------------------------------------------------------------------------


def _decode_manifest(text: str) -> None:
    """With the right hash of its content, which its writer computes."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        body.pop("sha256", None)
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        text = json.dumps({**body, "sha256": content_hash(canonical)})
    manifest = Manifest.from_json(text)
    _ = manifest.states, manifest.optimizer
    Manifest.from_json(manifest.to_json())


def _shard() -> ShardRecord:
    spec = TensorSpec(dtype="float32", shape=(2, 3))
    tensors = tuple(TensorRecord(name=name, spec=spec, crc32=7) for name in ("w", "optimizer/exp_avg/w"))
    return ShardRecord(file="a.safetensors", size=200, sha256="0" * 64, tensors=tensors)


def _manifest() -> str:
    return Manifest(
        step=3,
        job=to_json(example_job()),
        graph_hash="0" * 64,
        shards=(_shard(),),
        ledger={"steps": 3, "samples": 12},
        aliases={"w": ("v",)},
        notes={"config": "{}"},
    ).to_json()


def _decode_safetensors(data: bytes) -> None:
    """``data`` without the length of its header, which is that of its first line."""
    header, _, body = data.partition(b"\n")
    whole = len(header).to_bytes(8, "little") + header + body
    index = SafetensorsIndex(FetchedBlob("a.safetensors", len(whole), lambda offset, length: whole[offset : offset + length]))
    for name, entry in index.tensors.items():
        if index.read(name).shape != entry.spec.shape:
            raise AssertionError(f"{name!r} has another shape than its header says")
        if entry.spec.shape:
            index.read_rows(name, 0, min(1, entry.spec.shape[0]))


def _safetensors() -> Iterator[bytes]:
    arrays: dict[str, Array] = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n": np.zeros((0, 2), np.int8),
        "s": np.array(True),
    }
    specs = {name: TensorSpec(dtype=array.dtype.name, shape=array.shape) for name, array in arrays.items()}
    whole = b"".join(map(bytes, encode(specs, arrays.__getitem__, {"a": "b"})))
    length = int.from_bytes(whole[:8], "little")
    yield whole[8 : 8 + length] + b"\n" + whole[8 + length :]


def _decode_records(text: str) -> None:
    """A line of one of the files of a run; the readers of the other files refuse it."""
    taken = False
    for read in (read_record, RelayedRecord.from_line, AttemptRecord.from_line, RunResult.from_json):
        try:
            taken |= read(text) is not None
        except DataError:
            continue
    if not taken:
        raise InputError("no line of a file")


def _records() -> Iterator[str]:
    yield StepRecord(
        step=1, loss=2.0, seconds=0.5, elapsed=1.0, samples=8, learning_rate=1e-3, link_bytes={(0, 1): 5}, busy_seconds={0: 0.1}
    ).to_line()
    yield '{"kind":"evaluation","step":1,"elapsed":1.0,"loss":2.0,"metrics":{"a":1.0}}'
    recovery = {"source": "copies", "moved": 1, "step": 1, "attempt": 1, "replayed": 0, "pause": 0.5, "elapsed": 1.0}
    yield json.dumps({"kind": "recovery", **recovery, "cause": "lost a", "devices": ["a"]})
    yield RelayedRecord(relay="a", source="b", target="c", nbytes=5).to_line()
    yield AttemptRecord(number=1, step=0, elapsed=0.0, plan={}, topology={}).to_line()
    yield RunResult(status="finished", steps=3, seconds=1.0).to_json()


# -- tickets, certificates, requests to hosts, texts --------------------------------------------------------------------


def _decode_ticket(data: bytes) -> None:
    """The content of a ticket, with the right checksum."""
    Ticket.parse("farflung1-" + base64.b32encode(data + hashlib.sha256(data).digest()[:4]).decode().rstrip("=").lower())


def _tickets() -> Iterator[bytes]:
    ticket = Ticket(
        scope="join", addresses=("host:7077", "[::1]:1"), fingerprint=b"f" * 32, ticket_id="t", secret=b"s" * 16, expires=2e9
    )
    text = str(ticket).removeprefix("farflung1-").upper()
    yield base64.b32decode(text + "=" * (-len(text) % 8))[:-4]


def _decode_request(data: bytes) -> None:
    """A request for a certificate, and the names in one."""
    read_caller(data.split(b"\0"))
    body = b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE REQUEST-----\n"
    _authority().sign(body, name="a", role="worker", now=1e9)


@cache
def _authority() -> CertificateAuthority:
    with tempfile.TemporaryDirectory() as folder:
        return CertificateAuthority.open(Path(folder) / "authority", 1e9)


def _requests() -> Iterator[bytes]:
    yield base64.b64decode(b"".join(make_request("a", new_key()).splitlines()[1:-1]))


def _decode_host_request(text: str) -> None:
    if text.startswith("["):
        read_processes(text, "host")
    else:
        read_request(text)


def _decode_text(value: Any) -> None:
    """``[which field, its text]``: quantities, codecs, actions of schedules, addresses."""
    if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], str)):
        raise InputError("not an input")
    _FIELDS[value[0] % len(_FIELDS)](value[1])


def _host_requests() -> Iterator[str]:
    yield encode_request(ListProcesses(cluster="c"))
    yield encode_request(ShowLog(cluster="c", name="a", lines=5))


_FIELDS = (
    Seconds.parse,
    Bytes.parse,
    BytesPerSecond.parse,
    FlopsPerSecond.parse,
    read_codec,
    lambda text: read_memory(text, read_codec("topk")),
    Action.parse,
    split_address,
    Ticket.parse,
)
_TEXTS = ("5 ms", "1.5 GB", "100 Mbit/s", "2 TFLOP/s", "topk:ratio=10", "difference", "2F0", "[::1]:7077", "farflung1-abc")


TARGETS = {
    "graph": Target(decode=_decode_graph, seeds=lambda: [_graph().to_json()], form=Form.JSON),
    "job": Target(decode=_decode_job, seeds=lambda: [to_json(example_job())], form=Form.JSON),
    "job-file": Target(decode=_decode_job_file, seeds=lambda: [_JOB_FILE]),
    "bundle": Target(decode=_decode_bundle, seeds=_bundles, form=Form.PARSED),
    "packed": Target(decode=lambda data: unsqueeze(data, 1 << 20), seeds=lambda: [squeeze("text"), squeeze("a" * 5000)]),
    "plan": Target(decode=_decode_plan, seeds=_plans, form=Form.JSON),
    "optimizer": Target(decode=read_rules, seeds=_rules, form=Form.JSON),
    "topology": Target(decode=_decode_topology, seeds=lambda: [Topology.preset("local4-two-regions").to_json()], form=Form.JSON),
    "topology-file": Target(decode=_decode_topology_file, seeds=lambda: [_TOPOLOGY_FILE]),
    "manifest": Target(decode=_decode_manifest, seeds=lambda: [_manifest()], form=Form.JSON),
    "shard": Target(decode=ShardRecord.from_json, seeds=lambda: [_shard().to_json()], form=Form.JSON),
    "safetensors": Target(decode=_decode_safetensors, seeds=_safetensors),
    "records": Target(decode=_decode_records, seeds=_records, form=Form.JSON),
    "ticket": Target(decode=_decode_ticket, seeds=_tickets),
    "certificate": Target(decode=_decode_request, seeds=_requests),
    "host-request": Target(decode=_decode_host_request, seeds=_host_requests, form=Form.JSON),
    "text": Target(decode=_decode_text, seeds=lambda: [[place, text] for place, text in enumerate(_TEXTS)], form=Form.PARSED),
}
