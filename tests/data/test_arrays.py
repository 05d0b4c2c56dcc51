"""Arrays and images: each machine needs only the files of the fields that it reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from farflung.data import Source, open_source
from farflung.errors import DataError
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec

INPUTS = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
LABELS = np.arange(6, dtype=np.int64) % 3


def opened(tmp_path: Path, **fields: object) -> Source:
    spec = DataSpec.model_validate({"kind": "array", "path": "set", "eval_fraction": 0.0} | fields)
    return open_source(spec, tmp_path, cache=tmp_path / "cache")


def save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def test_folder_of_arrays(tmp_path: Path) -> None:
    save(tmp_path / "set/inputs.npy", INPUTS)
    save(tmp_path / "set/labels.npy", LABELS)
    source = opened(tmp_path)
    source.check()
    assert source.size == 6
    assert source.spec("inputs") == TensorSpec(dtype="float32", shape=(2, 2))
    assert source.spec("labels") == TensorSpec(dtype="int64", shape=())
    found = source.batch(np.array([4, 0, 4]), ["inputs", "labels"])
    assert np.array_equal(found["inputs"], INPUTS[[4, 0, 4]])
    assert found["labels"].tolist() == [1, 0, 1]
    assert not isinstance(found["inputs"], np.memmap)


def test_a_machine_needs_only_its_own_field(tmp_path: Path) -> None:
    save(tmp_path / "set/labels.npy", LABELS)
    source = opened(tmp_path)
    source.check(["labels"])
    assert source.size == 6
    assert list(source.batch(np.array([1]), ["labels"])) == ["labels"]
    assert set(source.fingerprint(["labels"])) == {"samples", "labels"}
    with pytest.raises(DataError, match=r"data 'set/inputs\.npy' is not on this machine .*: .* join --data FOLDER"):
        source.check()


def test_parts_in_order(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"set/inputs/part-{number}.npy", INPUTS[2 * number : 2 * number + 2])
    source = opened(tmp_path)
    assert source.size == 6
    assert np.array_equal(source.batch(np.array([5, 0, 3, 2]), ["inputs"])["inputs"], INPUTS[[5, 0, 3, 2]])
    save(tmp_path / "set/inputs/part-3.npy", INPUTS.astype(np.float64))
    with pytest.raises(DataError, match="the parts of 'inputs' differ in element type or shape"):
        opened(tmp_path).check(["inputs"])


def test_two_files(tmp_path: Path) -> None:
    save(tmp_path / "x.npy", INPUTS)
    save(tmp_path / "y.npy", LABELS)
    source = opened(tmp_path, path="x.npy", labels="y.npy")
    assert source.batch(np.array([2]), ["labels"])["labels"].tolist() == [2]
    (tmp_path / "y.npy").unlink()
    with pytest.raises(DataError, match=r"data 'y\.npy' is not on this machine"):
        opened(tmp_path, path="x.npy", labels="y.npy").check()


def test_fields_must_have_equally_many_samples(tmp_path: Path) -> None:
    save(tmp_path / "set/inputs.npy", INPUTS)
    save(tmp_path / "set/labels.npy", LABELS[:5])
    with pytest.raises(DataError, match=r"different numbers of samples \(inputs 6, labels 5\): make them equal"):
        opened(tmp_path).size  # noqa: B018


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data 'set/inputs\.npy' is not on this machine"):
        opened(tmp_path).size  # noqa: B018
    (tmp_path / "set" / "inputs").mkdir(parents=True)
    with pytest.raises(DataError, match=r"data 'set/inputs\.npy' is not on this machine"):
        opened(tmp_path).check()


@pytest.mark.parametrize("name", ["inputs.npy", "inputs/1.npy"])
def test_a_pipe_among_the_arrays_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "set" / name
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    with pytest.raises(
        DataError, match=rf"data 'set/inputs.npy': .*{name} is a pipe, a socket or a device, not a file: remove it"
    ):
        opened(tmp_path).check(["inputs"])


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    file = tmp_path / "set/inputs.npy"
    file.write_bytes(b"no array")
    with pytest.raises(DataError, match=r"inputs\.npy is no readable \.npy array"):
        opened(tmp_path).check()
    np.save(file, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"inputs\.npy is no readable \.npy array"):
        opened(tmp_path).check()
    save(file, np.zeros(3, "datetime64[s]"))
    with pytest.raises(DataError, match=r"holds datetime64\[s\] of shape \[3\]: it must have samples along"):
        opened(tmp_path).check()
    save(file, np.array(3.0))
    with pytest.raises(DataError, match=r"holds float64 of shape \[\]"):
        opened(tmp_path).check()
    save(file, INPUTS)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"inputs\.npy is no readable \.npy array"):
        opened(tmp_path).check()


def test_fingerprint_follows_content(tmp_path: Path) -> None:
    save(tmp_path / "set/inputs.npy", INPUTS)
    before = opened(tmp_path).fingerprint(["inputs"])
    save(tmp_path / "set/inputs.npy", INPUTS + 1)
    after = opened(tmp_path).fingerprint(["inputs"])
    assert before["samples"] == after["samples"] == "6"
    assert before["inputs"] != after["inputs"]


def picture(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 6), colour).save(path)


def pictures(tmp_path: Path) -> None:
    for name, colour in (("cat/1.png", (255, 0, 0)), ("cat/2.png", (0, 255, 0)), ("ant/1.png", (0, 0, 255))):
        picture(tmp_path / "train" / name, colour)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    picture(tmp_path / "train" / "loose.png", (0, 0, 0))


def images(tmp_path: Path, **fields: object) -> Source:
    return opened(tmp_path, kind="images", path="train", size=4, **fields)


def test_images_in_class_folders(tmp_path: Path) -> None:
    pictures(tmp_path)
    source = images(tmp_path)
    source.check()
    assert source.size == 3
    assert source.spec("inputs") == TensorSpec(dtype="float32", shape=(3, 4, 4))
    found = source.batch(np.arange(3), ["inputs", "labels"])
    assert found["labels"].tolist() == [0, 1, 1]
    assert found["inputs"].shape == (3, 3, 4, 4)
    assert found["inputs"].dtype == np.float32
    blue = [(0 - 0.485) / 0.229, (0 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert found["inputs"][0, :, 0, 0] == pytest.approx(blue, rel=1e-5)
    with pytest.raises(DataError, match="images have no field 'masks': they have inputs, labels"):
        source.batch(np.arange(1), ["masks"])


def test_labels_need_no_pictures(tmp_path: Path) -> None:
    pictures(tmp_path)
    whole = images(tmp_path).fingerprint()
    (tmp_path / "train/cat/1.png").write_bytes(b"")
    source = images(tmp_path)
    source.check(["labels"])
    assert source.batch(np.arange(3), ["labels"])["labels"].tolist() == [0, 1, 1]
    names = source.fingerprint(["labels"])
    assert names == {"names": whole["names"]}
    assert source.fingerprint()["images"] != whole["images"]


def test_bad_pictures_are_named(tmp_path: Path) -> None:
    pictures(tmp_path)
    (tmp_path / "train/ant/1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"data 'train': image ant/1\.png can't be read: .*; replace or remove it"):
        images(tmp_path).check()


def test_folders_without_classes(tmp_path: Path) -> None:
    picture(tmp_path / "train/loose.png", (0, 0, 0))
    with pytest.raises(DataError, match=r"data 'train' has no images in class folders on this machine .*<class>/<image>\.jpg"):
        images(tmp_path).check()


def test_evaluation_uses_the_numbers_of_training(tmp_path: Path) -> None:
    pictures(tmp_path)
    picture(tmp_path / "test/cat/9.png", (1, 2, 3))
    spec = DataSpec(kind="images", path="train", eval_path="test", size=4)
    held = open_source(spec, tmp_path, split="eval", cache=tmp_path / "cache")
    assert held.batch(np.arange(1), ["labels"])["labels"].tolist() == [1]
    picture(tmp_path / "test/dog/9.png", (1, 2, 3))
    with pytest.raises(DataError, match="data 'test' has the class 'dog', which the training data 'train' lacks"):
        open_source(spec, tmp_path, split="eval", cache=tmp_path / "cache").check()
