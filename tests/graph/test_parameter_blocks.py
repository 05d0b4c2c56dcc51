"""Blocks tile a stage, and every parameter is in the block of each operator that reads it, or a view of it."""

from __future__ import annotations

import pytest

from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import SubGraph, cut
from farflung.graph.parameter_blocks import gathered_bytes, holders, parameter_blocks, parameters_of
from tests.support.engines.engine_drive import captured


def stage_of(name: str) -> SubGraph:
    graph = captured(name)
    return cut(graph, [(0, len(graph.ops))])[0]


@pytest.mark.parametrize("name", ["gpt2", "llama", "moe"])
def test_blocks_tile_the_stage_and_have_what_their_operators_read(name: str) -> None:
    stage = stage_of(name)
    blocks, names = parameter_blocks(stage), set(parameters_of(stage))
    assert len(blocks) > 2
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == len(stage.positions)
    sizes = {one: stage.graph.state[one].spec.nbytes for one in names}
    for block in blocks:
        read = {one for i in stage.positions[block.start : block.stop] for one in stage.graph.reads[i][0]}
        assert read & names <= block.reads
        assert block.back <= block.reads
    assert max(sizes.values()) <= gathered_bytes(stage) < sum(sizes.values())


def test_a_view_is_read_where_its_values_are_read() -> None:
    """The product in the last block reads the first block's parameter through a transposed view."""
    stage = stage_of("gpt2")
    tied = next(name for name in parameters_of(stage) if len(stage.graph.uses[name]) > 1)
    blocks = parameter_blocks(stage)
    assert tied in blocks[0].reads
    assert tied in blocks[-1].reads
    assert tied not in blocks[0].back  # the backward of a look-up reads no table
    assert tied in blocks[-1].back


def test_a_stage_without_parameters_is_one_block() -> None:
    builder = GraphBuilder("none")
    value = builder.add("act", "ReLU", builder.input("x", "float32", (2, 3)))
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (2, 3)))
    graph = builder.build()
    (block,) = parameter_blocks(cut(graph, [(0, len(graph.ops))])[0])
    assert (block.start, block.stop, block.reads) == (0, len(graph.ops), frozenset())


def test_parameters_are_dealt_by_bytes() -> None:
    assert holders({"a": 3, "b": 2, "c": 2, "d": 9}, 2, ["a", "b", "c"]) == {"a": 0, "b": 1, "c": 1, "d": 0}
