"""What the page *What if* shows of a view: figures, tables, sentences, the map."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.api.plan_explanation import Reasons
from farflung.api.what_if import Evaluation, View
from farflung.ledger.words import money
from farflung.units import Bytes, Seconds
from farflung.web.reports.ink import inline
from farflung.web.reports.plan_map import plan_map
from farflung.web.reports.scene import scene_of_plan
from farflung.web.widgets.html_table import Cell, Markup, badge, cell, meter

__all__ = ["MEMORY_HEAD", "bottleneck", "headline", "machine_figures", "map_of", "state_of"]

MEMORY_HEAD = ("machine", "stages", "computing", "memory", "of the limit", "fits")
_NOTHING = "–"


def headline(found: Evaluation | None) -> list[tuple[str, str]]:
    """Return the large figures."""
    if found is None:
        names = ("step time", "tokens/s", "power, estimated", "cost per hour", "cost per step", "cost", "energy", "time")
        return [(what, _NOTHING) for what in names]
    spent = found.spending
    currency = spent.step.currency
    rate = ("tokens/s", found.tokens_per_second) if found.tokens_per_second else ("samples/s", found.samples_per_second)
    return [
        ("step time", str(Seconds(found.step_seconds))),
        (rate[0], _rate(rate[1])),
        ("power, estimated", f"{spent.watts:,.0f} W"),
        ("cost per hour", money(spent.hour, currency) if spent.hour else _NOTHING),
        ("cost per step", money(spent.step.total, currency) if spent.hour else _NOTHING),
        (f"cost, {found.job.steps:,} steps", money(spent.run, currency) if spent.hour else _NOTHING),
        (f"energy, {found.job.steps:,} steps", f"{_rate(spent.run_kwh)} kWh"),
        (f"time, {found.job.steps:,} steps", str(Seconds(found.run_seconds))),
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def state_of(view: View | None) -> tuple[str, str]:
    """Return the badge: a word and its tone."""
    if view is None:
        return "loading", ""
    if view.state == "failed":
        return "no new plan", "bad"
    if view.state == "ready":
        lacking = view.evaluation is not None and view.evaluation.lacking
        return ("does not fit", "bad") if lacking else ("new plan", "good")
    if view.state == "capturing":
        return "capturing the model", "warn"
    return ("present plan, planning", "warn") if view.evaluation is not None else ("planning", "warn")


def machine_figures(found: Evaluation | None) -> list[Sequence[Cell]]:
    """Return a row for each machine of the plan."""
    if found is None:
        return []
    return [
        (
            use.name,
            ", ".join(map(str, use.stages)),
            meter(use.busy, f"{use.busy:.0%}"),
            f"{Bytes(use.memory_bytes)} of {Bytes(use.memory_limit)}",
            meter(use.memory_bytes / use.memory_limit, f"{use.memory_bytes / use.memory_limit:.0%}"),
            badge("yes", "good") if use.fits else badge("lacks memory", "bad"),
        )
        for use in found.machines
    ]


def bottleneck(found: Evaluation | None, why: Reasons | None) -> Markup:
    """Return what limits the step, and what would remove it."""
    if found is None:
        return Markup('<p class="ff-empty">No plan yet.</p>')
    busiest = f"<p>Busiest: {cell(found.bottleneck)}.</p>"
    if why is None:
        return Markup(f'{busiest}<p class="ff-note">Simulating changes ...</p>')
    best, lines = why.best, [busiest]
    if best is None:
        lines.insert(0, "<p>No single machine or link at twice the speed would shorten the step.</p>")
    else:
        lines.insert(0, f"<p>Largest gain: <strong>{cell(best.what)}</strong>.</p>")
        rows = "".join(
            f"<li>{cell(gain.what)}: {cell(str(Seconds(gain.seconds)))} per step ({gain.factor:.2f} x as fast)</li>"
            for gain in why.held
            if gain.factor > 1.005
        )
        lines.append(f'<p class="ff-note">What would shorten the step, with this plan:</p><ul class="ff-list">{rows}</ul>')
    texts = (why.waiting[:1].upper() + why.waiting[1:], why.memory)  # the second one begins with the name of a machine
    lines += [f'<p class="ff-note">{cell(text)}.</p>' for text in texts]
    return Markup("".join(lines))


def map_of(found: Evaluation) -> Markup:
    """Return the map of the plan as SVG, with the theme of the page."""
    picture = plan_map(scene_of_plan(found.plan, found.topology, found.estimate, found.simulation))
    return Markup(inline(picture).replace("@media (prefers-color-scheme:dark){", "body.body--dark{"))
