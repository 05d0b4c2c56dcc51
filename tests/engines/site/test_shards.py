"""The ranks of a site share the parameters that are trained, by bytes."""

from __future__ import annotations

from farflung.engines import EngineSettings
from farflung.engines.site.shards import owners
from farflung.graph.cut import cut
from farflung.graph.parameter_blocks import parameters_of
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_drive import captured


def test_each_rank_has_its_share_of_what_is_trained() -> None:
    graph = captured("gpt2")
    (stage,) = cut(graph, [(0, len(graph.ops))])
    frozen = OptimizerSpec(groups=(GroupSpec(match="wte", frozen=True),))
    for optimizer in (OptimizerSpec(), frozen):
        found = owners(stage, EngineSettings(optimizer=optimizer), 2)
        sizes = {name: graph.state[name].spec.nbytes for name in found}
        trained = [name for name in found if not (optimizer is frozen and "wte" in name)]
        shares = [sum(sizes[name] for name in trained if found[name] == rank) for rank in range(2)]
        assert abs(shares[0] - shares[1]) <= max(sizes[name] for name in trained)
        assert found.keys() == set(parameters_of(stage))
