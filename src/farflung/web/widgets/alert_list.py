"""What deserves attention, as a list that screen readers announce."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from farflung.web.sources.alerts import Alert
from farflung.web.widgets.html_table import markup

__all__ = ["AlertList"]

_MOST = 8


class AlertList:
    """Alerts, the severe ones first; hidden when there are none."""

    def __init__(self) -> None:
        self._shown: Sequence[Alert] = ()
        self._box = markup().props("role=status")
        self._box.set_visibility(False)

    def show(self, alerts: Sequence[Alert]) -> None:
        """Show other alerts; nothing is sent if they are as before."""
        if list(alerts) == list(self._shown):
            return
        self._shown = list(alerts)
        ordered = sorted(alerts, key=lambda alert: not alert.severe)
        items = [f'<li class="{"bad" if one.severe else ""}">{escape(one.text)}</li>' for one in ordered[:_MOST]]
        if len(ordered) > _MOST:
            items.append(f"<li>and {len(ordered) - _MOST} more</li>")
        self._box.set_content(f'<ul class="ff-alerts">{"".join(items)}</ul>')
        self._box.set_visibility(bool(alerts))
