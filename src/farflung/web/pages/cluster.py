"""The cluster: alerts, machines by region, a map of links with latency, bandwidth and traffic, and the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from farflung.web.pages.actions import WORKER_ACTIONS, act_on_worker, share_link
from farflung.web.pages.link_map import link_map
from farflung.web.pages.page import View
from farflung.web.sources.alerts import cluster_alerts, disk_alert, run_alerts
from farflung.web.sources.broker_poll import LinkRow
from farflung.web.sources.cluster_totals import cluster_totals
from farflung.web.sources.run_figures import device_use, traffic
from farflung.web.widgets.alert_list import AlertList
from farflung.web.widgets.chart import Chart
from farflung.web.widgets.figures import Figures
from farflung.web.widgets.html_table import Cell, HtmlTable, Markup, action, badge, link, meter
from farflung.web.widgets.layout import button, card, grid, title

__all__ = ["build"]

_TONES = {"active": "good", "standby": "", "draining": "warn", "gone": "bad"}
_RUN_TONES = {"running": "good", "finished": "good", "failed": "bad", "stopped": "warn", "waiting": "warn"}
_LINKS = ("from", "to", "latency", "bandwidth", "traffic now", "in use", "measured by")
_NOTHING = "–"


def build(view: View) -> None:
    """Build the page."""
    view.follow(_ClusterPage(view).show)


class _ClusterPage:
    """The page in one browser; ``show`` brings it up to date."""

    def __init__(self, view: View) -> None:
        self._view = view
        owner = view.user.owns_broker
        with title("Cluster") as self._state:
            if owner:
                button("Share read-only link", lambda: share_link(view))
        self._alerts = AlertList()
        self._figures = Figures()
        with grid():
            with card("Links", "wide", "Thickness: traffic now. Color: share of the bandwidth in use."):
                self._map = Chart("Map of machines and links", _LINKS, tall=True)
            with card("Runs", "third"):
                self._runs = HtmlTable(
                    "Runs", ("run", "job", "state", "step"), text_columns=3, empty="No run yet: farflung submit JOB.toml"
                )
            with card("Machines"):
                head = [
                    "machine",
                    "state",
                    "device",
                    "engine",
                    "memory",
                    "free disk",
                    "speed",
                    "utilization",
                    "uptime",
                    *(["actions"] if owner else []),
                ]
                self._machines = HtmlTable(
                    "Machines", head, text_columns=4, empty="No worker has joined yet: farflung join TICKET"
                )
                if owner:
                    self._machines.on_action(lambda name, worker: act_on_worker(view, name, worker))

    def show(self) -> None:
        """Show what is new."""
        sources = self._view.sources
        cluster = sources.cluster
        live = [run for run in sources.active() if self._view.sees(run.name)]
        moving: dict[tuple[str, str], float] = {}
        use: dict[str, float] = {}
        for run in live:
            for pair, rate in traffic(run).items():
                moving[pair] = moving.get(pair, 0.0) + rate
            use |= device_use(run)
        self._state.show(*(("broker unreachable", "bad") if cluster.problem else ("connected", "good")))
        alerts = [*cluster_alerts(cluster), *disk_alert(sources.home)]
        for run in live:
            alerts += run_alerts(run, sources.analyses.of(run.folder.root))
        self._alerts.show(alerts)
        self._figures.show(_headline(cluster.members, cluster.runs, sum(moving.values())))
        self._machines.show(_machines(cluster.members, cluster.gone, (use, sources.regions()), self._view.user.owns_broker))
        self._runs.show([_run_row(one) for one in reversed(cluster.runs[-12:])])
        links = {(one.source, one.target): one for one in cluster.links}
        names = [str(one["name"]) for one in cluster.members]
        self._map.show(link_map(names, sources.regions(), links, moving), _link_rows(names, links, moving))


def _headline(members: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], rate: float) -> list[tuple[str, str]]:
    active = sum(one["state"] == "active" for one in members)
    memory, speed = cluster_totals(members)
    return [
        ("machines", str(len(members))),
        ("training now", str(active)),
        ("memory", str(memory)),
        ("speed", str(speed)),
        ("runs in progress", str(sum(one["state"] not in ("finished", "failed", "stopped") for one in runs))),
        ("traffic now", str(BytesPerSecond(rate)) if rate else _NOTHING),
    ]


def _machines(
    members: Sequence[Mapping[str, Any]],
    gone: Sequence[Mapping[str, Any]],
    known: tuple[Mapping[str, float], Mapping[str, str]],
    owner: bool,
) -> list[Sequence[Cell]]:
    """A row for each machine, under its region where regions are known."""
    use, regions = known
    groups: dict[str, list[Sequence[Cell]]] = {}
    for one in members:
        region = regions.get(str(one["name"]), "")
        groups.setdefault(region, []).append(_machine(one, use.get(str(one["name"])), owner))
    rows: list[Sequence[Cell]] = []
    for region in sorted(groups):
        rows += [[region or "no region"]] if len(groups) > 1 or region else []
        rows += groups[region]
    width = 10 if owner else 9
    rows += [
        [one["name"], badge("gone", "bad"), str(one["cause"] or "").partition("\n")[0], *[""] * (width - 3)] for one in gone[-8:]
    ]
    return rows


def _machine(one: Mapping[str, Any], use: float | None, owner: bool) -> list[Cell]:
    name, state = str(one["name"]), str(one["state"])
    paused = bool(one.get("paused"))
    words = "paused" if paused and state == "standby" else state
    row: list[Cell] = [
        name,
        badge(words, "warn" if paused else _TONES.get(state, "")),
        str(one.get("description") or one["kind"]),
        str(one["versions"].get("engine", _NOTHING)),
        str(Bytes(one["memory"])),
        _NOTHING if one.get("disk") is None else str(Bytes(one["disk"])),
        str(FlopsPerSecond(one["speed"])),
        _NOTHING if use is None else meter(use, f"{use:.0%}"),
        _uptime(float(one["uptime"])) if "uptime" in one else _NOTHING,
    ]
    if owner:
        offered = [entry for entry in WORKER_ACTIONS if entry.offered(one)]
        row.append(Markup(" ".join(action(entry.text, entry.name, name, entry.tone) for entry in offered)))
    return row


def _uptime(seconds: float) -> str:
    """In the largest unit: the table is sent again only when it changes."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "< 1 min"


def _run_row(run: Mapping[str, Any]) -> list[Cell]:
    name, state = str(run["run"]), str(run["state"])
    return [
        link(name, f"/run/{quote(name)}"),
        str(run["job"]),
        badge(state, _RUN_TONES.get(state, "")),
        f"{run['step']} / {run['steps']}",
    ]


def _link_rows(
    names: Sequence[str], links: Mapping[tuple[str, str], LinkRow], moving: Mapping[tuple[str, str], float]
) -> list[list[str]]:
    """The table beside the map: links with traffic first."""
    pairs = [pair for pair in {**links, **moving} if set(pair) <= set(names)]
    rows = []
    for pair in sorted(pairs, key=lambda pair: (-moving.get(pair, 0.0), pair)):
        one, rate = links.get(pair), moving.get(pair, 0.0)
        figures = [_NOTHING] * 2 if one is None else [str(Seconds(one.alpha)), str(BytesPerSecond(one.beta))]
        share = f"{rate / one.beta:.1%}" if one is not None and one.beta > 0 and rate else _NOTHING
        how = "" if one is None else one.measured_by + (f" through {one.relay}" if one.relay else "")
        rows.append([*pair, *figures, str(BytesPerSecond(rate)) if rate else _NOTHING, share, how])
    return rows
