"""Which values a stage's engine encodes where it computes them.

A value leaves its device once, so it is encoded there only if all its readers are on other workers and get the same payload.
Whatever else reads values keeps them plain: the sample cache of a link, helpers, and strategies that look for spoilt values.
"""

from __future__ import annotations

from farflung.codecs import get_codec, on_devices
from farflung.engines.encoded_value import Coding
from farflung.graph.cut import Edge
from farflung.graph.ir import ValueRef
from farflung.step.run_setup import RunSetup
from farflung.sync import get_strategy

__all__ = ["codings_of"]


def codings_of(setup: RunSetup, stage: int, device: str) -> tuple[Coding, ...]:
    """Return what the engine encodes of what this worker's replica of ``stage`` sends; ``device``: the device that computes."""
    encoder = setup.job.codec.encoder
    if encoder == "host" or (encoder == "auto" and device.partition(":")[0] == "cpu") or _needs_plain(setup):
        return ()
    piece = setup.subgraphs[stage]
    readers: dict[tuple[ValueRef, bool], list[Edge]] = {}
    for edge in piece.gives:
        readers.setdefault((edge.value, False), []).append(edge)
    for edge in piece.sends_gradients:
        readers.setdefault((edge.value, True), []).append(edge)
    found = (_coding(setup, stage, *key, edges) for key, edges in readers.items())
    return tuple(coding for coding in found if coding is not None)


def _needs_plain(setup: RunSetup) -> bool:
    sync = setup.plan.sync
    if setup.job.plan.helpers:
        return True
    return sync is not None and get_strategy(sync.strategy, **dict(sync.settings)).traits.faulty > 0


def _coding(setup: RunSetup, stage: int, value: ValueRef, gradient: bool, edges: list[Edge]) -> Coding | None:
    links = [setup.plan.link.get((edge.source, edge.target)) for edge in edges]
    choices = {None if link is None else link.gradients if gradient else link.activations for link in links}
    choice = choices.pop()
    if choices or choice is None or choice.memory or not on_devices(get_codec(choice.name, **dict(choice.params))):
        return None
    ends = {edge.source if gradient else edge.target for edge in edges}
    own = (index for index, place in enumerate(setup.places[stage]) if place == setup.device)
    remote = tuple(index for index in own if all(setup.places[end][index] != setup.device for end in ends))
    if not remote:
        return None
    return Coding(value=value, gradient=gradient, name=choice.name, params=choice.params, micro_batches=remote)
