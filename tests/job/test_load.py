"""Job files: what is read, and the exact words for what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.job import from_json, load_job, make_job, to_json, training_hash
from farflung.job.check import decided
from farflung.job.spec import SyncSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIMAL = '[model]\nrecipe = "gpt"\n[data]\nkind = "text"\npath = "corpus"\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as info:
        load_job(write(tmp_path, text))
    assert str(info.value).startswith(str(tmp_path / "job.toml"))
    assert "\n" not in str(info.value)
    return str(info.value).removeprefix(f"{tmp_path / 'job.toml'}: ")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    job = load_job(path)
    assert job.model is not None
    assert from_json(to_json(job)) == job


def test_there_are_four_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} >= {"gpt-bytes", "gpt2-finetune", "resnet18-cifar", "cnn"}


def test_reads_everything(tmp_path: Path) -> None:
    text = "steps = 7\nmicro_batch_sizes = [3, 2]\n" + MINIMAL + '[[optimizer.groups]]\nmatch = "bias"\nfrozen = true\n'
    job = load_job(write(tmp_path, text))
    assert job.steps == 7
    assert job.micro_batch_sizes == (3, 2)
    assert job.optimizer.groups[0].frozen
    assert job.weight(0) == 3 / 5


def test_paths_of_the_submitter_are_relative_to_the_job_file(tmp_path: Path) -> None:
    text = (
        '[model]\nrecipe = "nets/mine.py:make"\nargs = { folder = "gpt2", n = 3 }\n[data]\nkind = "text"\npath = "corpus"\n'
        '[weights]\nsource = "file"\npath = "w.safetensors"\n[checkpoint]\nresume = "../runs/a"\n'
    )
    job = load_job(write(tmp_path, text))
    assert job.model is not None
    assert job.model.recipe == f"{tmp_path}/nets/mine.py:make"
    assert job.model.args == {"folder": f"{tmp_path}/gpt2", "n": 3}
    assert job.weights.path == f"{tmp_path}/w.safetensors"
    assert job.checkpoint.resume == f"{tmp_path}/../runs/a"
    assert job.data.path == "corpus"


def test_paths_of_workers_and_names_of_runs_stay(tmp_path: Path) -> None:
    text = MINIMAL + '[weights]\nsource = "file"\npath = "w"\nhome = "workers"\n[checkpoint]\nresume = "run-12"\n'
    job = load_job(write(tmp_path, text))
    assert job.weights.path == "w"
    assert job.checkpoint.resume == "run-12"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3\n" + MINIMAL, "unknown key stepz: did you mean 'steps'? known are checkpoint, codec, "),
        (MINIMAL + "[optimizer]\nlearning = 1\n", "unknown key optimizer.learning: known are betas, clip_by, clip_norm, delayed"),
        (MINIMAL + "[optimizer]\nlr = -1\n", "optimizer.lr = -1: must be at least 0"),
        (MINIMAL + "[optimizer]\nclip_norm = 0\n", "optimizer.clip_norm = 0: must be more than 0"),
        (MINIMAL + "[optimizer]\nmomentum = 1.0\n", "optimizer.momentum = 1.0: must be less than 1"),
        (MINIMAL + "[optimizer]\nlr = nan\n", "optimizer.lr = nan: must be a finite number"),
        ("steps = '10'\n" + MINIMAL, "steps = '10': must be a whole number"),
        ("steps = true\n" + MINIMAL, "steps = True: must be a whole number"),
        ("steps = 1.5\n" + MINIMAL, "steps = 1.5: must be a whole number"),
        ("name = 3\n" + MINIMAL, "name = 3: must be a text in quotes"),
        ("precision = 'fp8'\n" + MINIMAL, "precision = 'fp8': must be 'float32', 'bf16' or 'fp16'"),
        ("micro_batch_sizes = 4\n" + MINIMAL, "micro_batch_sizes = 4: must be a list"),
        ("micro_batch_sizes = [4, 0]\n" + MINIMAL, "micro_batch_sizes[1] = 0: must be at least 1"),
        (
            f"micro_batch_sizes = [{10**30}]\n" + MINIMAL,
            f"micro_batch_sizes[0] = {10**30}: must be at most 1000000000",
        ),
        ('[data]\nkind = "txt"\n', "data.kind = 'txt': must be 'text', 'array', 'images' or 'dataset'; did you mean 'text'?"),
        ("copies = 9\n" + MINIMAL, "copies = 9: must be at most 8, or 'auto'"),
        ("copies = 'none'\n" + MINIMAL, "copies = 'none': must be a whole number, or 'auto'"),
        (
            MINIMAL + "[sync.settings]\nperiod = {}\n",
            "sync.settings.period = {}: must be a number, a text, true or false, or a list",
        ),
        (MINIMAL + "[data.fields]\nx = 3\n", "data.fields.x = 3: must be a text in quotes"),
        (f"micro_batch_sizes = {[1] * 4097}\n" + MINIMAL, "must have at most 4096 items"),
        ("threads = 100000\n" + MINIMAL, "threads = 100000: must be at most 1024"),
        ("micro_batch_sizes = []\n" + MINIMAL, "micro_batch_sizes = []: a step needs at least one micro-batch"),
        (MINIMAL + "[[optimizer.groups]]\nlr = 0.1\n", "optimizer.groups[0]: needs either match or names, to say which"),
        (MINIMAL + "[[optimizer.groups]]\nmatch = '('\n", "optimizer.groups[0].match = '(' is not a regular expression"),
        (
            MINIMAL + "[[optimizer.groups]]\nmatch = 'a'\nmach = 1\n",
            "unknown key optimizer.groups[0].mach: did you mean 'match'",
        ),
        ('[model]\nrecipe = "m"\nargs = { a = { b = 1 } }\n', "model.args.a = {'b': 1}: must be a number, a text, true or false"),
        ("when = 2026-01-01\n" + MINIMAL, "only numbers, texts, booleans, lists and tables are allowed"),
        ("steps = \n", "not valid TOML"),
        ('[data]\nkind = "text"\npath = "x"\n', "model is missing: add a [model] table"),
        ('[model]\nrecipe = "m"\n', "data.kind = 'caller' needs a Python caller"),
        ('[model]\nrecipe = "m"\n[data]\nkind = "text"\n', "data.kind = 'text' needs data.path"),
        ('[model]\nrecipe = "m"\n[data]\npath = "x"\n', "data.path is set but data.kind = 'caller' reads no files"),
        ('[model]\nrecipe = "m"\n[data]\nkind = "array"\npath = "x.npy"\n', "data.path = 'x.npy' is one array file"),
        (MINIMAL + 'labels = "y"\n', "data.labels = 'y' is for data.kind = 'array' only"),
        (MINIMAL + 'fields = { x = "../y" }\n', "data.fields.x = '../y': a field is a plain name"),
        (MINIMAL + 'tokenizer = ""\n', "data.tokenizer is empty"),
        ("on_nan = 'rollback'\n" + MINIMAL, "on_nan = 'rollback' goes back to a checkpoint, but checkpoint.every = 0"),
        (
            MINIMAL + "[verify]\nshare = 0.01\n",
            "verify.share = 0.01 with plan.replicas = 1: replicas compare results of single micro-batches bit by bit; ",
        ),
        (MINIMAL + "[plan]\nreplicas = 3\n[verify]\nshare = 1.5\n", "verify.share = 1.5: must be at most 1"),
        (
            MINIMAL + "[plan]\nreplicas = 3\n[sync]\nstrategy = 'ssgd'\n[verify]\nshare = 0.01\n",
            "verify.share = 0.01 with sync.strategy = 'ssgd': ",
        ),
        (MINIMAL + "[evaluate]\nevery = 5\n", "evaluate.every = 5 with evaluate.batches = 0 evaluates nothing"),
        (MINIMAL + "[evaluate]\nevery_batches = 5\n", "evaluate.every_batches = 5 with evaluate.batches = 0 evaluates nothing"),
        (
            MINIMAL + "[evaluate]\nevery = 5\nevery_batches = 9\nbatches = 1\n",
            "evaluate.every = 5 and evaluate.every_batches = 9 exclude each other: remove one of them",
        ),
        (MINIMAL + "[generate]\ntokens = 5\n", "generate.tokens = 5 needs a text to go on from"),
        (MINIMAL + "[generate]\nprompt = 'a'\n", "generate.prompt is set but generate.tokens = 0"),
        (MINIMAL + "[optimizer]\nname = 'adamw'\nmomentum = 0.9\n", "optimizer.momentum and nesterov belong to 'sgd'"),
        (MINIMAL + "[optimizer]\nnesterov = true\n", "optimizer.nesterov = true needs optimizer.momentum above 0"),
        (MINIMAL + "[optimizer]\nname = 'adamw'\nbetas = [0.9, 1.0]\n", "optimizer.betas = [0.9, 1.0]: both must be"),
        (MINIMAL + "[optimizer]\nbetas = [0.9]\n", "optimizer.betas[1] is missing"),
        (MINIMAL + "[optimizer]\nbetas = [0.9, 0.9, 0.9]\n", "optimizer.betas = [0.9, 0.9, 0.9]: must have at most 2 items"),
        (MINIMAL + "[[optimizer.groups]]\nmatch='a'\nfrozen=true\nlr=1\n", "optimizer.groups[0]: frozen parameters take no lr"),
        (MINIMAL + "[schedule]\nwarmup = 9\n", "schedule.warmup = 9 is longer than steps = 1"),
        (MINIMAL + "[schedule]\nfinal = 0.1\n", "schedule.final = 0.1 means nothing with name = 'constant'"),
        ("[generate]\nprompt = 'a'\ntokens = 5\n", "generate.tokens = 5, but data.kind = 'caller' feeds no prompt"),
        (MINIMAL + "[weights]\nsource = 'file'\n", "weights.source = 'file' needs weights.path"),
        (MINIMAL + "[weights]\npath = 'w'\n", "weights.path = 'w' is not read with weights.source = 'init'"),
        (
            '[model]\nrecipe = "m"\n[data]\nkind = "images"\npath = "x"\n[generate]\ntokens = 1\nprompt = "a"\n',
            "generate.tokens = 1 needs a tokenizer, data.kind = 'images' has none",
        ),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_a_value_that_only_programs_set_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('steps = 1\n[schedule]\nname = "cosin"\n')
    with pytest.raises(InputError, match=r"name = 'cosin': .*'one_cycle' or 'inverse_sqrt'; did you mean 'cosine'\?$"):
        load_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text('steps = 1\n[optimizer]\nname = "adamww"\n')
    with pytest.raises(InputError, match=r"name = 'adamww': must be 'sgd', .*'rmsprop' or 'rprop'; did you mean 'adamw'\?$"):
        load_job(tmp_path / "job.toml")


def test_many_errors_are_one_line(tmp_path: Path) -> None:
    text = refused(tmp_path, "a = 1\nb = 2\nc = 3\nd = 4\n" + MINIMAL)
    assert text.count("unknown key") == 3
    assert text.endswith("and 1 more")


def test_missing_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.toml does not exist: check the path"):
        load_job(tmp_path / "no.toml")
    with pytest.raises(InputError, match="can't be read"):
        load_job(tmp_path)
    with pytest.raises(InputError, match="at most 1048576 are read"):
        load_job(write(tmp_path, "#" * (1 << 20) + "\n"))


def test_json_round_trip_and_hashes() -> None:
    job = make_job({"steps": 3, "optimizer": {"groups": [{"match": "bias", "weight_decay": 0.0}]}})
    assert from_json(to_json(job)) == job
    longer = make_job({"steps": 4, "name": "other", "optimizer": {"groups": [{"match": "bias", "weight_decay": 0.0}]}})
    reseeded = make_job({"steps": 3, "seed": 1})
    assert training_hash(job) == training_hash(longer)
    assert training_hash(job) != training_hash(reseeded)


def test_broken_json_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^job: not valid JSON"):
        from_json('{"steps": ')
    with pytest.raises(InputError, match="unknown key stps"):
        from_json('{"stps": 1}')
    with pytest.raises(InputError, match=r"document = \[\]: must be a table"):
        from_json("[]")
    with pytest.raises(InputError, match="at most"):
        from_json(" " * (33 << 20))


def test_the_codec_that_weighs_links_itself_takes_no_where():
    with pytest.raises(
        InputError, match=r"codec\.where = 'slow' is not for codec\.name = 'auto', which weighs every link itself"
    ):
        make_job({"codec": {"name": "auto", "where": "slow"}})
    assert make_job({"codec": {"name": "int4", "where": "slow"}}).codec.where == "slow"


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (
            {"name": "int8", "ratio": 10},
            "codec.ratio = 10.0 means nothing with codec.name = 'int8', it is for topk, randomk, adatopk",
        ),
        ({"name": "int8", "values": "float16"}, "codec.values = 'float16' means nothing with codec.name = 'int8'"),
        ({"name": "int8", "error": 0.1}, "codec.error = 0.1 means nothing with codec.name = 'int8', it is for auto: remove it"),
        (
            {"name": "topk", "overhead": 3.0},
            "codec.overhead = 3.0 means nothing with codec.name = 'topk', it is for adatopk: remove",
        ),
        (
            {"name": "lowrank", "ratio": 9},
            "remove it (parameters of other codecs go into the name, as in 'lowrank:rank=8,ratio=10')",
        ),
        (
            {"name": "sign", "rotate": True},
            "codec.rotate = true means nothing with codec.name = 'sign', it is for int8, int4, int2",
        ),
        (
            {"name": "randomk", "format": "paper"},
            "codec.format = 'paper' means nothing with codec.name = 'randomk', it is for topk, adatopk: remove it",
        ),
        ({"name": "topk", "rounding": "stochastic"}, "codec.rounding = 'stochastic' means nothing with codec.name = 'topk'"),
        ({"ratio": 10}, "codec.ratio = 10.0 means nothing with codec.name = 'identity'"),
        ({"name": "topk:values=int4", "ratio": 10}, "codec.ratio = 10.0 beside parameters in codec.name = 'topk:values=int4'"),
        ({"name": "int4:block=row", "rotate": True}, "write it there if the codec has it, as rotate=true, or remove it"),
        ({"name": "adatopk:ratio=3"}, "adatopk has keys of [codec] for its settings; set codec.name = 'adatopk' and the keys"),
        ({"name": "lowrank:rank=2", "memory": "both"}, "codec.memory = 'both' with codec.name = 'lowrank:rank=2'"),
    ],
)
def test_what_means_nothing_with_a_codec_is_refused(codec: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)) as caught:
        make_job({"codec": codec}, source="job.toml")
    assert str(caught.value).startswith("job.toml: codec.")


def test_what_means_something_with_a_codec_is_taken() -> None:
    for codec in (
        {"name": "adatopk", "ratio": 10, "values": "int8", "overhead": 3.0},
        {"name": "adatopk", "format": "paper"},
        {"name": "randomk", "ratio": 7},
        {"name": "quantized", "rotate": True, "rounding": "stochastic"},
        {"name": "auto", "error": 0.1},
        {"name": "of a plug-in", "rotate": True},
        {"name": "lowrank:rank=3,values=int4,ratio=20"},
    ):
        job = make_job({"codec": codec})
        assert from_json(to_json(job)) == job
    sync = {"strategy": "ssgd", "settings": {"codec": "auto"}}
    job = make_job({"codec": {"error": 0.1, "phase": "scratch"}, "sync": sync, "plan": {"replicas": 2}})
    assert job.codec.error == 0.1
    other = decided(job, (1,), SyncSpec())
    assert from_json(to_json(other)) == other, "another strategy has no use for them, and the job still travels"


def test_memory_bytes_may_have_a_unit() -> None:
    for text, size in (("2 GB", 2e9), ("1 MiB", 2.0**20), (5e8, 5e8)):
        codec = {"name": "int4", "memory": "difference", "memory_bytes": text}
        assert make_job({"codec": codec}).codec.memory_bytes == size
    with pytest.raises(InputError, match=r"codec.memory_bytes = 'much': must be a number"):
        make_job({"codec": {"name": "int4", "memory": "difference", "memory_bytes": "much"}})


def test_patience_may_have_a_unit() -> None:
    for text, seconds in (("2 s", 2.0), ("500 ms", 0.5), (3, 3.0)):
        job = make_job({"plan": {"replicas": 2}, "sync": {"strategy": "ssgd", "patience": text}})
        assert job.sync.patience == seconds
        assert from_json(to_json(job)) == job
    with pytest.raises(InputError, match=r"sync.patience = 'soon': must be a number"):
        make_job({"plan": {"replicas": 2}, "sync": {"strategy": "ssgd", "patience": "soon"}})
