"""The folder of this user, and the key in it."""

from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.security.user_home import own_key


def test_a_file_in_place_of_the_folder_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "home"
    monkeypatch.setenv("FARFLUNG_HOME", str(place))
    assert own_key() == own_key()
    place.rename(tmp_path / "other")
    place.write_text("x")
    with pytest.raises(InputError, match=r"cannot make the state folder .*home: File exists; choose a folder that you may write"):
        own_key()
