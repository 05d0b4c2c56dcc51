"""Files that a job names and this machine lacks are reported before the model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands.planned_jobs import JOB, run

WITHOUT_MODEL = JOB.replace('"gpt"', '"gone.py:make"').replace("args = ", "# ")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [["submit", "job.toml"], ["plan", "job.toml", "--topology", "homogeneous-2"]])
@pytest.mark.parametrize(
    ("job", "key"),
    [
        (WITHOUT_MODEL, "data.path = 'x'"),
        (WITHOUT_MODEL.replace('"x"', '"here"') + 'eval_path = "x"\n', "data.eval_path = 'x'"),
        (WITHOUT_MODEL.replace('"x"', '"here"') + 'tokenizer = "x"\n', "data.tokenizer = 'x'"),
    ],
)
def test_absent_data_are_one_line(
    command: list[str | Path], job: str, key: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "here").mkdir()
    (place / "job.toml").write_text(job)
    code, _, err = run(command, capsys)
    assert code == 2, "the model or the broker is missing, which is noticed afterwards"
    assert err.splitlines()[0] == (
        f"note: each worker that reads data needs {key}, and this machine has no {place / 'x'}: check the path, or start these "
        "workers with farflung join --data FOLDER"
    )
    (place / "x").write_text("abc")
    _, _, err = run(command, capsys)
    assert "note: each worker" not in err


@pytest.mark.parametrize("command", [["submit", "job.toml"], ["plan", "job.toml", "--topology", "homogeneous-2"]])
def test_absent_weights_are_an_error_before_the_model_is_loaded(
    command: list[str | Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "job.toml").write_text(WITHOUT_MODEL + '[weights]\nsource = "file"\npath = "gone.safetensors"\n')
    code, _, err = run(command, capsys)
    assert code != 0
    assert "gone.safetensors" in err.splitlines()[0]
