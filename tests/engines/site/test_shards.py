"""The ranks of a site share the parameters that are trained, by bytes."""

from __future__ import annotations

from farflung.engines import EngineSettings
from farflung.engines.site.shards import owners
from farflung.graph.cut import cut
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engine_drive import captured


def test_each_rank_has_its_share_of_what_is_trained() -> None:
    graph = captured("gpt2")
    (stage,) = cut(graph, [(0, len(graph.ops))])
    frozen = OptimizerSpec(groups=(GroupSpec(match="wte", frozen=True),))
    for optimizer in (OptimizerSpec(), frozen):
        found = owners(stage, EngineSettings(optimizer=optimizer), 2)
        sizes = {name: graph.state[name].spec.nbytes for name in found}
        loads = [sum(sizes[name] for name, owner in found.items() if owner == rank) for rank in range(2)]
        assert abs(loads[0] - loads[1]) <= max(sizes.values())
        assert any("wte" in name for name in found) == (optimizer is not frozen)
    assert owners(stage, EngineSettings(training=False), 2) == {}
