"""How errors describe a defect: an exception that is not one of farflung's own errors."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["defect_text"]

_HOME = Path(__file__).parent


def defect_text(defect: BaseException) -> str:
    """Return the kind and the text of ``defect``, and where it was raised: the last line in farflung's code."""
    text = f"{type(defect).__name__}: {defect}"
    for frame, number in reversed(list(traceback.walk_tb(defect.__traceback__))):  # reads no source files: a sandbox has none
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_HOME):
            return f"{text} (at {file.relative_to(_HOME.parent)}:{number}, in {frame.f_code.co_name})"
    return text
