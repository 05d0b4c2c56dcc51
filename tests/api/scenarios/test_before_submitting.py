"""What is found before a job leaves the machine, and what a plan says of devices that it does not use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung import train
from farflung.api.submission import bundle_job, check_data, check_names
from farflung.broker.planning import plan_run
from farflung.cli.main import main
from farflung.cluster import Topology
from farflung.errors import DataError, FarflungError, InputError
from farflung.job import make_job
from farflung.job.spec import LimitSpec, SyncSpec
from farflung.planners.auto import Auto

MODEL = {"recipe": "gpt", "args": {"vocab": 32, "sequence": 8, "layers": 1, "width": 16, "heads": 2}}


def test_an_unknown_codec_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    job = make_job({"model": {"recipe": "no such recipe"}, "codec": {"name": "zip"}})
    with pytest.raises(InputError, match=r"codec\.name = 'zip' is unknown: known are adatopk, auto, bf16, .*topk"):
        bundle_job(job, base=tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lowrank:rnk=3", "codec.name = 'lowrank:rnk=3': codec 'lowrank' has no parameter 'rnk': did you mean 'rank'? known "),
        ("lowrank:rank=0", "codec.name = 'lowrank:rank=0': codec 'lowrank' needs a rank from 1 to 1024, got 0"),
        (
            "lowrank:rank",
            "codec.name = 'lowrank:rank': codec 'lowrank:rank': write a name, or name:key=value,key=value as in topk",
        ),
        ("zip:level=9", "codec.name = 'zip:level=9' is unknown: known are adatopk, auto, bf16, cast, fp16, identity, int2, "),
    ],
)
def test_wrong_parameters_of_a_codec_name_their_key(name: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        check_names(make_job({"codec": {"name": name}}))
    assert str(caught.value).startswith(text)


def test_engines_of_a_topology_are_known_although_this_machine_lacks_them() -> None:
    job = make_job({"limits": {"engines": ["abacus>=1"]}})
    with pytest.raises(InputError, match=r"^limits\.engines: unknown engine 'abacus': known are jax, .*torch$"):
        check_names(job)
    check_names(job, ["", "abacus 1.2"])


def test_a_run_that_would_end_with_its_first_weights_is_refused() -> None:
    sync = {"strategy": "fedbuff", "settings": {"sync_every": 10, "overlap": 1}}
    with pytest.raises(InputError, match="steps = 10: no contribution moves the common model before step 11"):
        check_names(make_job({"steps": 10, "plan": {"replicas": 2}, "sync": sync}))
    check_names(make_job({"steps": 11, "plan": {"replicas": 2}, "sync": sync}))
    check_names(make_job({"plan": {"replicas": 2}, "sync": sync}))  # only planned


def test_an_unknown_codec_of_a_strategy_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    sync = {"strategy": "local_sgd", "settings": {"codec": "zip:level=9"}}
    job = make_job({"model": {"recipe": "no such recipe"}, "plan": {"replicas": 2}, "sync": sync})
    with pytest.raises(InputError, match=r"^sync\.settings\.codec = 'zip:level=9': unknown codec 'zip': known are bf16, .*topk"):
        bundle_job(job, base=tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": "zip"}, "codec='zip' is unknown"),
        ({"planner": "guess"}, "unknown planner 'guess'"),
        (
            {"replicas": 2, "sync": SyncSpec(strategy="ssgd", settings={"codec": "zip"})},
            r"sync=SyncSpec\(settings=\{'codec': 'zip'\}\): unk",
        ),
    ],
)
def test_train_refuses_unknown_names_before_anything_is_captured(options: dict[str, Any], text: str) -> None:
    def never(step: int, micro_batch: int) -> Any:
        raise AssertionError("no batch is needed to see that")

    with pytest.raises(InputError, match=text):
        train(lambda: None, never, steps=1, **options)  # type: ignore[arg-type,return-value]


def test_an_unknown_strategy_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    left = {"strategies": ["exact", "diloco", "nosuch"]}
    job = make_job({"model": {"recipe": "no such recipe"}, "plan": {"planner": "auto"}, "open": left})
    with pytest.raises(InputError, match=r"^open\.strategies: unknown .*'nosuch': .*known are .*diloco"):
        bundle_job(job, base=tmp_path)


def test_a_micro_batch_that_no_machine_holds_is_refused(tmp_path: Path) -> None:
    wide = {**MODEL, "args": {**MODEL["args"], "sequence": 1 << 20}}  # type: ignore[dict-item]
    with pytest.raises(InputError, match=r"^examples of 1000000000 samples don't fit into this machine's memory: make micro_b"):
        bundle_job(make_job({"model": wide, "micro_batch_sizes": [10**9]}), base=tmp_path)


def test_devices_that_are_not_used_are_named(tmp_path: Path) -> None:
    job = make_job({"model": MODEL, "workers": 1, "plan": {"planner": "equal_number"}})
    topology = Topology.preset("homogeneous-2")
    planned = plan_run(bundle_job(job, base=tmp_path), topology)
    (unused,) = set(topology.names) - set(planned.plan.devices)
    assert f"unused: {unused} (the job sets workers = 1)" in planned.explanation
    assert planned.summary.endswith(f"; unused: {unused} (the job sets workers = 1)"), "the one line says why, too"
    many = plan_run(bundle_job(job.model_copy(update={"workers": None}), base=tmp_path), Topology.preset("homogeneous-64"))
    assert "(the model cannot be cut into more stages)" in many.explanation
    some = job.model_copy(update={"workers": None, "limits": LimitSpec(stages=2, exclude=("device-7",))})
    lines = plan_run(bundle_job(some, base=tmp_path), Topology.preset("homogeneous-8"), planner=Auto()).explanation.splitlines()
    assert lines[-1] == "unused: device-7 (excluded by the limits of the job)"
    assert "cannot be cut" not in lines[-2], "the model has more"
    assert lines[-2].startswith("unused: ")
    pairs = make_job({"model": MODEL, "micro_batch_sizes": [1, 1], "plan": {"planner": "equal_number", "replicas": 2}})
    three = plan_run(bundle_job(pairs, base=tmp_path), Topology.preset("homogeneous-3"))
    assert three.explanation.splitlines()[-1].endswith("(2 idle devices are needed for one more stage with 2 replicas)")
    four = replace(three, topology=Topology.preset("homogeneous-4"))
    assert "(equal_number predicts no shorter step with more devices; plan.planner" in four.explanation
    assert four.summary.endswith("(equal_number predicts no shorter step with more devices)"), "without the remedy"
    both = plan_run(bundle_job(job.model_copy(update={"workers": 2}), base=tmp_path), topology)
    assert "unused" not in both.explanation


TEXT = {"kind": "text", "path": "corpus", "sequence": 8}


def checked(tmp_path: Path, data: dict[str, object], **more: object) -> None:
    model = {"recipe": "gpt", "args": {**MODEL["args"], "vocab": 256}}  # type: ignore[dict-item]
    job = make_job({"model": model, "data": {**TEXT, **data}, **more})
    check_data(bundle_job(job, base=tmp_path), tmp_path)


def test_a_job_that_fits_is_not_refused_though_its_data_are_elsewhere(tmp_path: Path) -> None:
    checked(tmp_path, {}, evaluate={"batches": 1})
    checked(tmp_path, {"tokenizer": "chars"})
    checked(tmp_path, {"tokenizer": "on/workers/tokenizer.json"})


@pytest.mark.parametrize(
    ("data", "more", "kind", "text"),
    [
        ({"sequence": 16}, {}, DataError, r"takes \[8\] per sample, the data's 'inputs' has \[16\]: set data.sequence"),
        ({"eval_fraction": 0.0}, {"evaluate": {"batches": 1}}, InputError, "nothing to evaluate on: set data.eval_path"),
        ({"kind": "images"}, {}, DataError, r"takes \[8\] per sample, the data's 'inputs' has \[3, 32, 32\]"),
        (
            {"fields": {"words": "inputs"}},
            {},
            InputError,
            "data.fields names 'words', but the model's inputs are tokens",
        ),
        ({"tokenizer": "big.json"}, {}, DataError, "'big.json' has 300 ids, the model's vocabulary 256: raise the vocabulary"),
    ],
)
def test_what_does_not_fit_is_found_here(
    tmp_path: Path, data: dict[str, object], more: dict[str, object], kind: type[FarflungError], text: str
) -> None:
    words = {f"w{number}": number for number in range(300)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    (tmp_path / "big.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(kind, match=text):
        checked(tmp_path, data, **more)


def test_the_commands_look_before_they_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'micro_batch_sizes = [2]\n[model]\nrecipe = "gpt"\n'
        "args = { vocab = 100, sequence = 8, layers = 1, width = 16, heads = 2 }\n"
        '[data]\nkind = "text"\npath = "corpus"\nsequence = 8\n'
    )
    with pytest.raises(SystemExit) as over:
        main(["plan", str(job), "--topology", "homogeneous-2"])
    assert over.value.code == DataError.exit_code
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("farflung: data.tokenizer = 'bytes' has 256 ids, the model's vocabulary 100: raise the vocabulary")


def test_an_unknown_planner_or_strategy_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    document: dict[str, object] = {"model": {"recipe": "no such recipe"}, "plan": {"planner": "opfence"}}
    with pytest.raises(InputError, match="unknown planner 'opfence': did you mean 'op_fence'"):
        bundle_job(make_job(document), base=tmp_path)
    document["plan"] = {"replicas": 2}
    document["sync"] = {"strategy": "local_sgd", "settings": {"often": 3}}
    with pytest.raises(InputError, match="strategy 'local_sgd' has no setting 'often': known are sync_every"):
        bundle_job(make_job(document), base=tmp_path)
