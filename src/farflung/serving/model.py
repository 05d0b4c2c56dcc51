"""What is served: a run's checkpoint or a model's folder, captured with key-value caches, and its tokenizer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from farflung.api.generation import run_tokenizer
from farflung.api.submission import with_weights
from farflung.checkpoint import CheckpointReader, ModelFiles, export_file, locate
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.frontends.recipes.base import CacheShape, Recipe
from farflung.frontends.recipes.registry import load_recipe
from farflung.frontends.text_model import positions_of, recipe_arguments
from farflung.graph.ir import Graph
from farflung.ids import new_id
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.job.spec import CheckpointSpec, ModelSpec, PlanSpec, WeightsSpec
from farflung.messages.submission import Bundle
from farflung.serving.scheduler import Settings
from farflung.serving.tokenizers import FolderTokenizer, PlainTokenizer, ServedTokenizer

__all__ = ["ServedModel", "ServingOptions", "open_model"]

#: Positions of a request unless the caller says otherwise, if the model has as many.
_CONTEXT = 2048
#: Worker losses in a row; a server has no steps that could count between them.
_RECOVERIES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How a model is served. ``context``: tokens of a request, its answer included (0: as the model allows, at most 2,048).

    ``slots``: requests that are computed at the same time. ``chunk``: tokens of a batch. ``workers``: to wait for (``None``: any
    number).

    Raises:
        InputError: a value is out of its range.
    """

    slots: int = 8
    context: int = 0
    chunk: int = 64
    planner: str = "op_fence"
    workers: int | None = None
    threads: int = 1
    dtype: str = "float32"
    topology: Topology | None = None
    emulate: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 1024:
            raise InputError(f"--slots must be from 1 to 1024, got {self.slots}")
        if not 1 <= self.chunk <= 8192:
            raise InputError(f"--chunk must be from 1 to 8192, got {self.chunk}")
        if self.context < 0 or self.context == 1:
            raise InputError(f"--context must be 2 or more, or 0 for that of the model, got {self.context}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens in the rows of the graphs, ascending: powers of two for the next tokens of answers, then for prompts."""
        most = min(self.slots, self.chunk)
        return tuple(sorted({*(2**power for power in range(most.bit_length())), most, self.chunk}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that is ready to be submitted. ``context``: tokens of a request."""

    name: str
    bundle: Bundle
    tokenizer: ServedTokenizer
    context: int
    settings: Settings


@contextmanager
def open_model(
    source: Path, name: str, options: ServingOptions, *, data: Path, say: Callable[[str], None]
) -> Iterator[ServedModel]:
    """Open a model's folder (``config.json`` and safetensors), or the folder of a run or checkpoint.

    Args:
        source: the folder.
        name: what clients call the model.
        options: how it is served.
        data: where a job's data paths start from on this machine, for a tokenizer that a run does not keep.
        say: told what goes on; capturing takes seconds.

    Inside, files with the weights exist; they are sent before the run is submitted.

    Raises:
        InputError: the model can't be served.
        CheckpointError: there is no checkpoint, or it is damaged.
        CaptureError: the model can't become a graph.
    """
    if (source / "config.json").is_file():
        folder = str(source.resolve())
        spec = ModelSpec(recipe="hf", args={"folder": folder, "sequence": 2, "dtype": options.dtype})
        recipe = load_recipe(spec.recipe, spec.args)
        if recipe.weights is None:
            raise InputError(f"{source} has no weights: it needs model.safetensors, or model.safetensors.index.json")
        tokenizer: ServedTokenizer = FolderTokenizer(source)
        yield _captured(name, (JobSpec(model=spec), recipe), tokenizer, options, say)
        return
    store, step = locate(source)
    reader = CheckpointReader.from_folder(store.folder, step)
    job = job_from_json(reader.manifest.job)
    if job.model is None:
        raise InputError(
            "this run was submitted by a Python program, so only that program has its model: export a run of a job file, "
            "or a folder of transformers, and serve that"
        )
    run_folder = store.folder.parent
    with (
        tempfile.TemporaryDirectory(prefix="farflung-serve-") as place,
        recipe_arguments(job.model, reader.manifest.notes) as args,
    ):
        recipe = load_recipe(job.model.recipe, args)
        weights = Path(place) / "weights.safetensors"
        export_file(reader, weights)
        kept = WeightsSpec(source="file", path=str(weights), home="submitter")
        yield _captured(
            name,
            (JobSpec(model=job.model, precision=job.precision, weights=kept), recipe),
            _run_tokenizer(job, run_folder, data),
            options,
            say,
        )


def _run_tokenizer(job: JobSpec, run_folder: Path, data: Path) -> ServedTokenizer:
    files = ModelFiles(run_folder)
    if files.tokenizer is not None and job.data.tokenizer not in ("bytes", "chars"):
        return FolderTokenizer(files.folder)
    return PlainTokenizer(run_tokenizer(job, run_folder, data))


def _captured(
    name: str, model: tuple[JobSpec, Recipe], tokenizer: ServedTokenizer, options: ServingOptions, say: Callable[[str], None]
) -> ServedModel:
    """Capture the serving form in all sizes."""
    given, recipe = model
    if recipe.serve is None:
        raise InputError(f"model recipe {recipe.name!r} can't be served: it writes no text with a key-value cache")
    context = _context(recipe, options.context)
    say(f"capturing the model for rows of {', '.join(map(str, options.sizes))} tokens")
    form = recipe.serve(CacheShape(slots=options.slots, context=context))
    graphs = {size: _untrained(recipe.capture(form, size)) for size in options.sizes}
    job = given.model_copy(
        update={
            "name": f"serve {name}",
            "micro_batch_sizes": (options.sizes[-1],),
            "threads": options.threads,
            "recoveries": _RECOVERIES,
            "copies": 0,
            "workers": options.workers,
            "plan": PlanSpec(planner=options.planner, schedule="gpipe", recompute="never", again=False),
            "checkpoint": CheckpointSpec(recover_every=0.0, at_end=False),
        }
    )
    bundle = Bundle(
        run=new_id("serve"),
        job=with_weights(job, recipe),
        graphs=graphs,
        topology=options.topology,
        emulate=options.emulate,
        notes=recipe.notes,
    )
    settings = Settings(sizes=options.sizes, slots=options.slots)
    return ServedModel(name=name, bundle=bundle, tokenizer=tokenizer, context=context, settings=settings)


def _context(recipe: Recipe, wanted: int) -> int:
    """Tokens of a request.

    Raises:
        InputError: the model has fewer positions than wanted.
    """
    longest = recipe.positions or positions_of(recipe.notes)
    if longest is not None and wanted > longest:
        raise InputError(f"--context {wanted} is more than the {longest} positions of the model: choose at most {longest}")
    return wanted or min(_CONTEXT, longest or _CONTEXT)


def _untrained(graph: Graph) -> Graph:
    """``graph`` without trained parameters: nothing takes memory for gradients."""
    return replace(graph, states=tuple(replace(state, trainable=False) for state in graph.states))
