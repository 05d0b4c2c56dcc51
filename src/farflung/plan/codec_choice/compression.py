"""Which codec each link gets: none, the same everywhere, or AdaTopK's ratio by the link's slowness (equation (7))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farflung.cluster import Topology
from farflung.codecs import adaptive_ratios, codec_parts, get_codec, words_per_kept
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import TensorSpec
from farflung.job.spec import CodecSpec, JobSpec
from farflung.plan.codec_choice.auto_codec import Flow, allocate_codecs, why
from farflung.plan.model import CodecChoice, LinkPlan, Plan, Stage
from farflung.plan.traffic import edges_by_link, wire_bytes

__all__ = ["PLANNED", "assign_codecs", "choice_of", "codec_lines", "codec_of", "slow_choices", "wire_factor_of"]

#: Names of codecs that are the planner's choice.
PLANNED = ("adatopk", "auto")
_DENSE = CodecChoice()
#: A tensor whose wire factor stands for all, and a link on which nothing but bytes counts.
_TYPICAL = TensorSpec(shape=(1 << 20,), dtype="float32")
_SLOW = Flow(tensors=(_TYPICAL,), latency=0.0, bytes_per_second=1e3)
#: A codec that spares a smaller share of the bytes than this is not worth its loss and its work.
_LEAST_GAIN = 0.2
#: Transfers that take at most this share of what bounds a micro-batch are hidden behind it.
_SHORT = 0.5


def choice_of(codec: CodecSpec) -> CodecChoice:
    """The fixed codec of a job as a choice (``adatopk`` at its nominal ratio).

    Raises:
        InputError: no codec has that name (the text lists the known ones), or it has no such parameter.
    """
    name, written = codec_parts(codec.name)
    params: dict[str, float | int | str] = {
        key: int(value) if isinstance(value, bool) else value for key, value in written.items()
    }
    name = "topk" if name == "adatopk" else name
    if not written and name in ("topk", "randomk"):
        params |= {"ratio": float(codec.ratio), "values": codec.values, **_format(codec)}
    if codec.rounding != "nearest":
        params["rounding"] = codec.rounding
    if codec.rotate:
        params["rotate"] = 1
    get_codec(name, **params)
    return CodecChoice(name=name, params=tuple(params.items()))


def _format(codec: CodecSpec) -> dict[str, str]:
    """The parameter of top-k for the format of positions, if it is not the usual one."""
    return {} if codec.format == "compact" else {"format": codec.format}


def wire_factor_of(codec: CodecSpec) -> float:
    """Bytes on the wire per dense byte where communication is the bottleneck: AdaTopK sends 1 / ratio on the slowest link,
    ``auto`` what its codec for a link without end sends."""
    if codec.name == "adatopk":
        return 1.0 / codec.ratio
    if codec.name != "auto":
        return min(1.0, wire_bytes(choice_of(codec), _TYPICAL) / _TYPICAL.nbytes)
    return min(1.0, sum(wire_bytes(choice, _TYPICAL) for choice in slow_choices(codec)) / (2 * _TYPICAL.nbytes))


def slow_choices(codec: CodecSpec) -> tuple[CodecChoice, ...]:
    """What ``auto`` takes there and back on a link on which nothing but bytes counts."""
    ways = [replace(_SLOW, backward=back, tuning=_tunes(codec), memory=_memory(codec, back)) for back in (False, True)]
    return allocate_codecs(ways, codec.error)


def codec_of(job: JobSpec) -> CodecSpec:
    """The job's codec with its ``phase`` decided: weights of a file are fine-tuned."""
    if job.codec.phase != "auto":
        return job.codec
    return job.codec.model_copy(update={"phase": "fine-tuning" if job.weights.source == "file" else "scratch"})


def _tunes(codec: CodecSpec) -> bool:
    return codec.phase == "fine-tuning"


def _memory(codec: CodecSpec, backward: bool) -> str:
    """What a job lets a link remember in one direction."""
    name = "error_feedback" if backward else "difference"
    return name if codec.memory in (name, "both") else ""


def assign_codecs(
    stages: Sequence[Stage],
    subgraphs: Sequence[SubGraph],
    topology: Topology,
    codec: CodecSpec,
    pace: float = 0.0,
) -> tuple[LinkPlan, ...]:
    """A link for each pair of stages that exchange values, with codecs for values and gradients.

    ``auto``: see ``auto_codec``. ``adatopk``: R_i is the link's dense seconds per micro-batch, values and gradients
    together; both get one ratio. The factor is ``codec.overhead`` or, if that is not set, what the wire format really
    spends. Stages on one device, and links where a codec would spare less than a fifth of the bytes, stay dense.

    ``codec.where = "slow"``: so do the links between two devices whose dense transfers of a micro-batch, in the longer direction,
    take at most half of what bounds a micro-batch: ``pace`` (seconds that the busiest device computes for one) or the slowest
    link after its codec. Such transfers are hidden behind the others, and a codec there would only cost loss.
    """
    table = edges_by_link(subgraphs)
    if codec.name == "auto":
        return _automatic(stages, table, topology, codec)
    there, back = _memory(codec, False), _memory(codec, True)
    links = _assigned(stages, table, topology, codec, pace)
    return tuple(
        replace(link, activations=_remembering(link.activations, there), gradients=_remembering(link.gradients, back))
        for link in links
    )


def _remembering(choice: CodecChoice, memory: str) -> CodecChoice:
    return choice if choice == _DENSE else replace(choice, memory=memory)


def _assigned(
    stages: Sequence[Stage],
    table: Mapping[tuple[int, int], list[Edge]],
    topology: Topology,
    codec: CodecSpec,
    pace: float,
) -> tuple[LinkPlan, ...]:
    base = choice_of(codec)
    choices = [base] * len(table)
    if codec.name == "adatopk":
        factor = codec.overhead if codec.overhead is not None else lambda ratio: words_per_kept(ratio, codec.values, codec.format)
        seconds = [_dense_seconds(stages, pair, edges, topology) for pair, edges in table.items()]
        ratios = adaptive_ratios(seconds, codec.ratio, factor)
        kept = (("values", codec.values), *_format(codec).items())
        choices = [CodecChoice(name="topk", params=(("ratio", round(r, 3)), *kept)) for r in ratios]
    hidden = _hidden(stages, table, topology, choices, pace) if codec.where == "slow" else frozenset()
    links = []
    for ((source, target), edges), choice in zip(table.items(), choices, strict=True):
        ends = stages[source].device, stages[target].device
        local = ends[0] == ends[1] or ends in hidden
        forward = [edge for edge in edges if edge.forward_bytes]
        backward = [edge for edge in edges if edge.backward_bytes]
        links.append(
            LinkPlan(
                source=source,
                target=target,
                activations=_DENSE if local else _worthwhile(choice, forward),
                gradients=_DENSE if local else _worthwhile(choice, backward),
            )
        )
    return tuple(links)


def _automatic(
    stages: Sequence[Stage], table: Mapping[tuple[int, int], list[Edge]], topology: Topology, codec: CodecSpec
) -> tuple[LinkPlan, ...]:
    """A choice for each link and direction between devices."""
    flows = _flows(stages, table, topology, codec)
    chosen = dict(zip(flows, allocate_codecs(list(flows.values()), codec.error), strict=True))
    return tuple(
        LinkPlan(
            source=source,
            target=target,
            activations=chosen.get((source, target, False), _DENSE),
            gradients=chosen.get((source, target, True), _DENSE),
        )
        for source, target in table
    )


def _flows(
    stages: Sequence[Stage], table: Mapping[tuple[int, int], list[Edge]], topology: Topology, codec: CodecSpec
) -> dict[tuple[int, int, bool], Flow]:
    """(source, target, whether back) -> what goes there, where two devices exchange floating-point numbers."""
    flows: dict[tuple[int, int, bool], Flow] = {}
    for (source, target), edges in table.items():
        here, there = stages[source].device, stages[target].device
        for backward, (begin, end) in ((False, (here, there)), (True, (there, here))):
            specs = tuple(edge.spec for edge in edges if (edge.backward_bytes if backward else edge.forward_bytes))
            if here != there and any(spec.floating for spec in specs):
                place = topology.index(begin), topology.index(end)
                flows[source, target, backward] = Flow(
                    tensors=specs,
                    latency=float(topology.alpha[place]),
                    bytes_per_second=float(topology.beta[place]),
                    backward=backward,
                    tuning=_tunes(codec),
                    memory=_memory(codec, backward),
                )
    return flows


def codec_lines(plan: Plan, subgraphs: Sequence[SubGraph], topology: Topology, job: JobSpec) -> list[str]:
    """Why each link of ``plan`` has its codecs, where ``auto`` has chosen them."""
    codec = codec_of(job)
    if codec.name != "auto":
        return []
    lines = [f"codecs for {'fine-tuning' if _tunes(codec) else 'training from scratch'}, error {codec.error:g}:"]
    for (source, target, backward), flow in _flows(plan.stages, edges_by_link(subgraphs), topology, codec).items():
        link = plan.link[source, target]
        way = f"{target} -> {source}, gradients" if backward else f"{source} -> {target}, values"
        lines.append(f"  {way}: {why(flow, codec.error, link.gradients if backward else link.activations)}")
    return lines


def _dense_seconds(stages: Sequence[Stage], pair: tuple[int, int], edges: Sequence[Edge], topology: Topology) -> float:
    here, there = stages[pair[0]].device, stages[pair[1]].device
    forth = topology.seconds(here, there, sum(edge.forward_bytes for edge in edges))
    return forth + topology.seconds(there, here, sum(edge.backward_bytes for edge in edges))


def _hidden(
    stages: Sequence[Stage],
    table: Mapping[tuple[int, int], Sequence[Edge]],
    topology: Topology,
    choices: Sequence[CodecChoice],
    pace: float,
) -> frozenset[tuple[str, str]]:
    """The (sending, receiving) devices, in forward direction, whose transfers are short; all stages that share a link count."""
    dense: dict[tuple[str, str], float] = {}
    coded: dict[tuple[str, str], float] = {}
    for (pair, edges), choice in zip(table.items(), choices, strict=True):
        here, there = stages[pair[0]].device, stages[pair[1]].device
        forward = [edge for edge in edges if edge.forward_bytes]
        backward = [edge for edge in edges if edge.backward_bytes]
        for ends, moved in (((here, there), forward), ((there, here), backward)):
            dense[ends] = dense.get(ends, 0.0) + sum(wire_bytes(_DENSE, edge.spec) for edge in moved)
            coded[ends] = coded.get(ends, 0.0) + sum(wire_bytes(_worthwhile(choice, moved), edge.spec) for edge in moved)
    remote = [ends for ends in dense if ends[0] != ends[1]]
    bound = max((topology.seconds(*ends, coded[ends]) for ends in remote), default=0.0)
    limit = _SHORT * max(pace, bound)
    short = {ends for ends in remote if topology.seconds(*ends, dense[ends]) <= limit}
    return frozenset(ends for ends in short if ends[::-1] in short)


def _worthwhile(choice: CodecChoice, edges: Sequence[Edge]) -> CodecChoice:
    """``choice`` if it spares enough of the dense bytes, else dense."""
    dense = sum(wire_bytes(_DENSE, edge.spec) for edge in edges)
    return choice if sum(wire_bytes(choice, edge.spec) for edge in edges) < (1.0 - _LEAST_GAIN) * dense else _DENSE
