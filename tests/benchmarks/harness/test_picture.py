"""Every line of a picture has a look of its own, and labels do not overlap, for every result that the documentation shows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from benchmarks.harness.picture import looks, spread
from benchmarks.network import sync_network_plot
from benchmarks.training import loss_plot, sync_loss_plot
from benchmarks.training.loss_study import plot as loss_study_plot

RESULTS = Path(__file__).resolve().parents[3] / "docs/results"


def figures(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]


def network():
    return {"runs": [run for model in ("gpt2", "llama") for run in figures(f"sync-network-{model}")["runs"]]}


DRAWN = {
    "loss": (loss_plot, lambda: figures("loss")),
    "loss-bytes": (loss_plot, lambda: figures("loss-bytes")),
    "loss-80": (loss_plot, lambda: figures("loss-80")),
    "loss-study": (loss_study_plot, lambda: figures("loss-study")["means"]),
    "sync-loss": (sync_loss_plot, lambda: figures("sync-loss")),
    "sync-network": (sync_network_plot, network),
}


@pytest.mark.parametrize("name", list(DRAWN))
def test_no_two_lines_look_alike(name, tmp_path, monkeypatch):
    plot, read = DRAWN[name]
    saved = []
    monkeypatch.setattr(plot, "save", lambda figure, path: saved.append(figure))
    plot.draw(read(), tmp_path / "picture.svg")
    for axis in saved[0].axes:
        lines = [line for line in axis.lines if not line.get_label().startswith("_")]
        assert lines
        for traits in (("color", "linestyle", "marker"), ("color", "marker")):
            seen = [tuple(str(line.properties()[trait]) for trait in traits) for line in lines]
            assert len(set(seen)) == len(seen), (axis.get_title(), seen)
        assert sorted(note.get_text() for note in axis.texts) == sorted(line.get_label() for line in lines)
        boxes = sorted((Text.get_window_extent(note) for note in axis.texts), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 + 1 for below, above in itertools.pairwise(boxes)), axis.get_title()


def test_a_name_has_one_look_in_all_panels_and_no_two_names_share_one():
    names = [str(i) for i in range(40)]
    found = looks([*names, *names])
    assert list(found) == names
    assert len({(look.color, str(look.dashes)) for look in found.values()}) == 40
    assert len({(look.color, look.marker) for look in found.values()}) == 40
    assert len({look.color for look in list(found.values())[:8]}) == 8
    with pytest.raises(ValueError, match="at most 40 names; draw several pictures"):
        looks(map(str, range(41)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_labels_are_apart_and_keep_their_order(heights, step):
    placed = spread(heights, step)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for below, above in itertools.pairwise(order):
        assert placed[above] - placed[below] >= step - 1e-9
    assert max(placed) <= 1
    assert min(placed) >= -1e-9


def test_labels_with_room_stay_where_they_are():
    assert spread([0.5, 0.1, 0.9], 0.1) == [0.5, 0.1, 0.9]
