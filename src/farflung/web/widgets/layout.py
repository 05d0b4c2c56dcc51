"""The frame of every page: header, navigation, theme switch, sign-out, and the parts that hold content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from nicegui import ui

from farflung.web.widgets.html_table import Markup, badge, cell, markup

__all__ = ["Badge", "button", "card", "frame", "grid", "lead", "note", "title"]

_STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
_MARK = (
    '<svg width="22" height="22" viewBox="0 0 22 22" aria-hidden="true"><g fill="none" stroke="var(--accent)" stroke-width="1.6">'
    '<path d="M5 16 11 5l6 9M5 16l12-2"/></g><g fill="var(--accent)"><circle cx="5" cy="16" r="2.6"/>'
    '<circle cx="11" cy="5" r="2.6"/><circle cx="17" cy="14" r="2.6"/></g></svg>'
)
#: Before Vue starts: the theme that this browser chose last ("auto" follows the system), and what the buttons of the header do.
_SCRIPT = """
window.farflung = {
  theme() { return localStorage.getItem("farflung-theme") || "auto"; },
  dress() {
    const theme = this.theme(), dark = theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
    if (window.Quasar) Quasar.Dark.set(dark);
    document.body.classList.toggle("body--dark", dark); document.body.classList.toggle("body--light", !dark);
    const button = document.getElementById("ff-theme");
    if (!button) return;
    button.textContent = {auto: "Auto", light: "Light", dark: "Dark"}[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
  },
  nextTheme() {
    const all = ["auto", "light", "dark"];
    localStorage.setItem("farflung-theme", all[(all.indexOf(this.theme()) + 1) % 3]); this.dress();
  },
  async signOut() { await fetch("/sign-out", {method: "POST"}); location.assign("/sign-in"); },
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => farflung.dress());
document.addEventListener("click", (event) => {
  if (event.target.id === "ff-theme") farflung.nextTheme();
  if (event.target.id === "ff-sign-out") farflung.signOut();
});
"""


@contextmanager
def frame(links: Sequence[tuple[str, str]], current: str) -> Iterator[None]:
    """The frame of a page around the block. ``links``: (text, path) of the navigation; ``current``: the marked path."""
    ui.add_head_html(f"<style>{_STYLE}</style><script>{_SCRIPT}</script>")
    ui.add_body_html("<script>farflung.dress()</script>")
    items = "".join(
        f'<a href="{escape(path)}"{" aria-current=page" if path == current else ""}>{escape(text)}</a>' for text, path in links
    )
    markup(
        Markup(
            f'<a class="ff-skip" href="#main">Skip to content</a><header class="ff-header"><div>'
            f'<a class="ff-brand" href="/">{_MARK}farflung</a><nav class="ff-nav" aria-label="Pages">{items}</nav>'
            '<div class="ff-tools"><button type="button" id="ff-theme" class="ff-button plain">Auto</button>'
            '<button type="button" id="ff-sign-out" class="ff-button plain">Sign out</button></div></div></header>'
        )
    )
    with ui.element("div").classes("ff-main").props("id=main tabindex=-1"):  # NiceGUI puts it into a main
        yield
    ui.run_javascript("farflung.dress()")


class Badge:
    """One word with a colored ground."""

    def __init__(self) -> None:
        self._box = markup(tag="span")

    def show(self, text: str, tone: str = "") -> None:
        """Show ``text``; ``tone``: ``good``, ``warn``, ``bad`` or empty."""
        content = badge(text, tone) if text else ""
        if self._box.content != content:
            self._box.set_content(content)


@contextmanager
def title(text: str) -> Iterator[Badge]:
    """The heading of a page with a badge; the block makes buttons beside it."""
    with ui.element("div").classes("ff-title"):
        markup(Markup(escape(text)), tag="h1")
        found = Badge()
        with ui.element("div").classes("ff-actions"):
            yield found


@contextmanager
def grid() -> Iterator[None]:
    """Cards beside each other."""
    with ui.element("div").classes("ff-grid"):
        yield


@contextmanager
def row() -> Iterator[None]:
    """Cards of equal height beside each other, as many as fit. They share the whole width, also when some are hidden."""
    with ui.element("div").classes("ff-row"):
        yield


@contextmanager
def card(heading: str, size: str = "", remark: str = "") -> Iterator[ui.element]:
    """A card with a heading. ``size``: ``half``, ``third``, ``wide`` (two thirds) or empty (the whole row)."""
    with ui.element("section").classes(f"ff-card {size}").props(f'aria-label="{escape(heading)}"') as box:
        head = f"<h2>{escape(heading)}</h2>" + (f'<span class="ff-note">{escape(remark)}</span>' if remark else "")
        markup(Markup(head), tag="header")
        yield box


def lead(text: str) -> ui.html:
    """A sentence below the heading of a page."""
    return markup(Markup(cell(text)), tag="p").classes("ff-lead")


def note(text: str | Markup) -> ui.html:
    """A short remark."""
    return markup(Markup(cell(text)), tag="p").classes("ff-note")


def button(text: str, handler: Callable[[], object], kind: str = "") -> ui.element:
    """A button. ``kind``: ``main``, ``danger``, ``plain``, ``small`` or empty."""
    with ui.element("button").classes(f"ff-button {kind}").props("type=button").on("click", lambda _: handler()) as found:
        markup(Markup(escape(text)), tag="span")
    return found
