"""The rules on graphs that capture makes: documents, masks that are never sent, module runs, cuts everywhere."""

from __future__ import annotations

import pytest

from farflung.frontends.torch.capture import capture
from farflung.graph import Graph
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.modules import cut_widths, module_runs
from farflung.graph.render import to_svg, to_text

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, tokens, attention_mask):
            self.model.loss_type = "ForCausalLM"
            return self.model(input_ids=tokens, attention_mask=attention_mask, labels=tokens, use_cache=False).loss

    with torch.device("meta"):
        module = Loss()
    ones = torch.ones(4, 16, dtype=torch.int64)
    return capture(module, (ones, ones))


def bounds(graph: Graph, count: int) -> list[tuple[int, int]]:
    size = len(graph.ops)
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]


def test_documents_of_captured_graphs_round_trip(gpt2):
    again = Graph.from_json(gpt2.to_json())
    assert again.to_json() == gpt2.to_json()
    assert again == gpt2


def test_only_what_is_small_of_a_mask_is_sent(gpt2):
    widths = cut_widths(gpt2)
    head = gpt2.position["linear"]  # the labels are shifted after it
    for split in range(1, len(gpt2.ops)):
        edges = cut(gpt2, [(0, split), (split, len(gpt2.ops))])[1].requires_activations
        free = [edge for edge in edges if not edge.gradient]
        assert split > head or sum(edge.forward_bytes for edge in free) <= 4 * 16, [str(edge.value) for edge in free]
        assert widths.forward[split] == sum(edge.forward_bytes for edge in edges)
        assert widths.backward[split] == sum(edge.backward_bytes for edge in edges)


def test_each_block_is_one_run_between_single_tensor_cuts(gpt2):
    blocks = [run for run in module_runs(gpt2, "block") if run.type == "GPT2Block"]
    assert [run.path for run in blocks] == ["model.transformer.h.0", "model.transformer.h.1"]
    assert {run.start for run in blocks} <= set(cut_widths(gpt2).single)


def test_the_tied_weight_is_a_state_of_both_ends(gpt2):
    first, *_, last = cut(gpt2, bounds(gpt2, 3))
    tied = "model.transformer.wte.weight"
    assert tied in first.states
    assert tied in last.states
    assert len(gpt2.uses[tied]) == 2


def test_captured_graphs_can_be_drawn(gpt2):
    assert "GPT2Block" in to_text(gpt2, bounds=bounds(gpt2, 3))
    assert to_svg(gpt2, level="block").count("<rect") == 1 + len(module_runs(gpt2, "block"))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(64, 5)

    def forward(self, x, label):
        x = self.pool(self.drop(nn.functional.relu(self.bn(self.conv(x)))))
        return nn.functional.cross_entropy(self.fc(x.flatten(1)), label)


def by_hand() -> Graph:
    b = GraphBuilder("Small")
    x = b.input("x", "float32", (2, 3, 8, 8))
    x = b.add("conv", "Conv2d", x, in_channels=3, out_channels=4, kernel_size=3, padding=1)
    x = b.add("relu", "ReLU", b.add("bn", "BatchNorm2d", x, num_features=4))
    x = b.add("flat", "Flatten", b.add("pool", "MaxPool2d", b.add("drop", "Dropout", x, p=0.25), kernel_size=2))
    x = b.add("fc", "Linear", x, in_features=64, out_features=5)
    b.add("loss", "CrossEntropyLoss", x, b.label("label", "int64", (2,)))
    return b.build()


def test_both_ways_give_the_same_kind_of_graph():
    captured = capture(Small(), (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)))
    made = by_hand()

    def kernel(graph: Graph) -> list[tuple]:
        return [(op.target, op.kind, op.outputs, op.rng) for op in graph.ops]

    assert kernel(captured) == kernel(made)
    assert {(s.name, s.kind, s.spec, s.trainable) for s in captured.states} == {
        (s.name, s.kind, s.spec, s.trainable) for s in made.states
    }
    assert [name for name, _ in captured.state_updates] == [name for name, _ in made.state_updates]
    for a, b in zip(captured.ops, made.ops, strict=True):
        common = min(len(a.args), len(b.args))
        numbers = [(x, y) for x, y in zip(a.args[:common], b.args, strict=False) if isinstance(x, (int, float, tuple))]
        assert all(x == y for x, y in numbers), (a, b)


def test_batch_norm_statistics_stay_in_one_stage():
    graph = capture(Small(), (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)))
    for split in range(1, len(graph.ops)):
        if not cut_widths(graph).allowed[split]:
            continue
        parts = cut(graph, [(0, split), (split, len(graph.ops))])
        holders = [part.stage for part in parts if "bn.running_mean" in part.states]
        assert len(holders) == 1
