"""Forms of native controls: labeled sliders, choices and numbers. One handler receives the changes of all of them.

Native controls work by keyboard and with screen readers. The server sends a form once and never sets its values again, so that no
answer of the server moves a slider under the user's finger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from farflung.web.widgets.html_table import Markup, markup

__all__ = ["Choice", "Field", "Form", "Number", "Slider", "Text", "number_cell"]

_CHANGED = """(event) => {
  const field = event.target.closest("[data-field]");
  if (!field) return;
  const shown = field.parentElement.querySelector("output");
  if (shown) shown.textContent = `× ${+(2 ** field.value).toPrecision(3)}`;
  emit(field.dataset.field, field.value);
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A factor from ``2 ** low`` to ``2 ** high``; its value is the exponent."""

    name: str
    label: str
    low: float = -4.0
    high: float = 4.0

    def html(self) -> str:
        """Return the control with its label."""
        return (
            f'<div class="ff-field wide"><label for="{self.name}">{escape(self.label)}</label><output>× 1</output>'
            f'<input type="range" id="{self.name}" data-field="{self.name}" min="{self.low:g}" max="{self.high:g}" step="0.25" '
            'value="0"></div>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of ``options``: (value, text); or groups of them: (heading, options). ``value``: the first choice."""

    name: str
    label: str
    options: Sequence[tuple[str, str]] = ()
    groups: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    value: str = ""
    wide: bool = False

    def html(self) -> str:
        """Return the control with its label."""
        inner = _options(self.options, self.value)
        for heading, options in self.groups:
            inner += f'<optgroup label="{escape(heading)}">{_options(options, self.value)}</optgroup>' if options else ""
        return (
            f'<div class="ff-field{" wide" if self.wide else ""}"><label for="{self.name}">{escape(self.label)}</label>'
            f'<select id="{self.name}" data-field="{self.name}">{inner}</select></div>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number, or nothing (``hint`` is shown then)."""

    name: str
    label: str
    hint: str = ""
    value: str = ""
    low: float = 0.0

    def html(self) -> str:
        """Return the control with its label."""
        return (
            f'<div class="ff-field"><label for="{self.name}">{escape(self.label)}</label>'
            f'<input type="number" id="{self.name}" data-field="{self.name}" min="{self.low:g}" step="any" inputmode="decimal" '
            f'placeholder="{escape(self.hint)}" value="{escape(self.value)}"></div>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Several lines of text, ``value`` at first."""

    name: str
    label: str
    hint: str = ""
    value: str = ""

    def html(self) -> str:
        """Return the control with its label."""
        return (
            f'<div class="ff-field wide"><label for="{self.name}">{escape(self.label)}</label>'
            f'<textarea id="{self.name}" data-field="{self.name}" rows="6" spellcheck="false" '
            f'placeholder="{escape(self.hint)}">\n{escape(self.value)}</textarea></div>'
        )


Field = Slider | Choice | Number | Text


def _options(options: Iterable[tuple[str, str]], value: str) -> str:
    return "".join(
        f'<option value="{escape(one)}"{" selected" if one == value else ""}>{escape(text)}</option>' for one, text in options
    )


def number_cell(name: str, label: str, value: str, *, low: float = 0.0) -> Markup:
    """Return a number in a cell of a table."""
    return Markup(
        f'<input type="number" class="ff-cell" data-field="{escape(name)}" min="{low:g}" step="any" value="{escape(value)}" '
        f'aria-label="{escape(label)}">'
    )


class Form:
    """Fields below each other; or, without fields, a place for markup with controls, such as a table of ``number_cell``."""

    def __init__(self, handler: Callable[[str, str], object], fields: Sequence[Field] = ()) -> None:
        """``handler(name, value)`` receives each change, values as text from outside."""
        self._box = markup()
        self._box.on("input", lambda event: handler(str(event.args[0]), str(event.args[1])), js_handler=_CHANGED, throttle=0.05)
        self.show(fields)

    def show(self, fields: Sequence[Field]) -> None:
        """Show other fields."""
        inner = "".join(field.html() for field in fields)
        self.show_markup(Markup(f'<div class="ff-form">{inner}</div>' if fields else ""))

    def show_markup(self, content: Markup) -> None:
        """Show other markup."""
        self._box.set_content(str(content))
