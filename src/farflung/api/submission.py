"""From a job file to a bundle: load the recipe, capture its forms, apply what the job freezes. Needs torch, here only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.api.optimizers import with_named_optimizer
from farflung.checkpoint import Weights, find_model_files, match_states
from farflung.checkpoint.safetensors import encode
from farflung.client.connection import Client
from farflung.cluster import Topology
from farflung.codecs import CODECS
from farflung.data import check_fit
from farflung.engines.registry import ENGINES
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.graph.weight_expressions import expressions_from_json, expressions_to_json
from farflung.ids import new_id
from farflung.job import JobSpec
from farflung.job.engine_ranges import engine_name
from farflung.job.groups import is_frozen
from farflung.known_names import known_names
from farflung.messages.submission import Bundle
from farflung.object_store import is_remote
from farflung.plan.codec_choice.compression import PLANNED, choice_of
from farflung.plan.codec_choice.exchange_codec import job_strategy
from farflung.plan.synchronization import check_fits, check_length
from farflung.planners import get_planner
from farflung.sync import get_strategy

if TYPE_CHECKING:
    from farflung.frontends.recipes.base import Recipe

__all__ = ["bundle_job", "check_data", "check_names", "freeze", "send_weights", "with_weights"]


def bundle_job(
    job: JobSpec,
    *,
    base: Path,
    topology: Topology | None = None,
    emulate: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Bundle:
    """Capture the job's model in all forms that the job needs.

    Args:
        job: a job with a model.
        base: the folder that a recipe file's path starts from.
        topology: devices and links to plan for.
        emulate: shape the links as ``topology`` says.
        say: told what goes on (capturing takes seconds).

    Raises:
        InputError: the job has no model, or the recipe lacks a form that the job needs.
        CaptureError: the model can't become a graph.
    """
    from farflung.frontends.recipes.registry import load_recipe

    check_names(job, () if topology is None else [device.engine for device in topology.devices])
    if job.model is None:
        raise InputError("the job has no [model]: name a recipe, e.g. recipe = 'gpt', or your own 'model.py:make'")
    recipe = load_recipe(job.model.recipe, job.model.args, base=base)
    files = find_model_files(job, base)
    sizes = sorted(set(job.micro_batch_sizes), reverse=True)
    say(f"capturing the model {job.model.recipe} (micro-batches of {', '.join(map(str, sizes))} samples)")
    graphs = {size: freeze(recipe.graph("train", size), job) for size in sizes}
    _same_structure(graphs)
    job = with_named_optimizer(with_weights(job, recipe), graphs[sizes[0]])
    evaluation = generation = None
    if job.evaluate.batches:
        evaluation = recipe.graph("evaluate", sizes[0])
    if job.generate.tokens:
        generation = recipe.graph("generate", 1)
    return Bundle(
        run=new_id("run"),
        job=job,
        graphs=graphs,
        eval_graph=evaluation,
        generate_graph=generation,
        topology=topology,
        emulate=emulate,
        notes=recipe.notes,
        files=files,
    )


def with_weights(job: JobSpec, recipe: Recipe) -> JobSpec:
    """``job`` with the weights of the recipe, unless the job says where its first weights come from, and with their sources."""
    changes: dict[str, str] = {}
    if recipe.weights is not None and not job.weights.model_fields_set & {"source", "path"}:
        changes = {"source": "file", "path": recipe.weights}
    weights = job.weights.model_copy(update=changes)
    # files that lie on the workers alone are taken to be those of the recipe
    path = weights.path if weights.home == "submitter" or is_remote(weights.path) else recipe.weights
    if weights.source != "file" and "quantized" in recipe.notes:
        raise InputError("model.args.quantize needs trained weights: name a folder with safetensors, or remove quantize")
    if recipe.sources is not None and weights.source == "file" and path is not None:
        files = Weights.open(path)
        sources = expressions_to_json(recipe.sources(files.names, lambda name: files.entry(name).spec))
        weights = weights.model_copy(update={"sources": sources})
    return job.model_copy(update={"weights": weights})


def check_names(job: JobSpec, engines: Sequence[str] = ()) -> None:
    """Whether the job's codecs, planner, engines and strategies exist and fit it; asked before the capture, which takes seconds.

    ``engines``: of the devices of a topology, with versions; they may be plug-ins that this machine lacks.

    Raises:
        InputError: one is unknown, or does not fit.
    """
    if job.codec.family not in PLANNED and job.codec.family not in CODECS:
        known = known_names(job.codec.family, [*PLANNED, *CODECS])
        raise InputError(f"codec.name = {job.codec.name!r} is unknown: {known}")
    if job.codec.name not in PLANNED:
        CODECS.get(job.codec.family)  # a plug-in may be broken
        try:
            choice_of(job.codec)
        except InputError as error:
            raise InputError(f"codec.name = {job.codec.name!r}: {error}") from None
    get_planner(job.plan.planner)
    stated = {engine.partition(" ")[0] for engine in engines if engine}
    for name in map(engine_name, job.limits.engines):
        if name not in ENGINES and name not in stated:
            raise InputError(f"limits.engines: unknown engine {name!r}: {known_names(name, sorted({*ENGINES, *stated}))}")
    if job.sync.strategy != "exact":
        strategy = job_strategy(job)
        check_fits(strategy, job)
        check_length(strategy, job)
    for name in job.open.strategies:
        try:
            if name != "exact":
                get_strategy(name)
        except InputError as error:
            raise InputError(f"open.strategies: {error}") from None


def check_data(bundle: Bundle, base: Path) -> None:
    """See, before anything leaves this machine, that the job's data can fill its model (what files hold, workers look at).

    Args:
        bundle: what ``bundle_job`` made.
        base: the job file's folder: a tokenizer that lies there too is compared with the model's vocabulary.

    Raises:
        InputError: an input of the model has no field.
        DataError: shapes or element types do not fit, or the vocabulary is too small.
    """
    job = bundle.job
    check_fit(job.data, bundle.graph, base, evaluates=bundle.eval_graph is not None)
    if bundle.eval_graph is not None:
        check_fit(job.data, bundle.eval_graph, base)


def freeze(graph: Graph, job: JobSpec) -> Graph:
    """``graph`` with the parameters of the job's frozen groups not trainable: no gradient is computed or sent for them.

    Raises:
        InputError: nothing is left to train, or ``precision = "fp16"`` would lose the gradients of a parameter.
    """
    spec = job.optimizer
    states = tuple(
        replace(state, trainable=False) if state.trainable and is_frozen(spec, state.name) else state for state in graph.states
    )
    if not any(state.trainable for state in states):
        remedy = "loosen optimizer.groups" if spec.groups else "set requires_grad of those to train"
        raise InputError(f"every parameter is frozen: there is nothing to train; {remedy}")
    found = replace(graph, states=states)
    if not found.trained:
        remedy = "loosen optimizer.groups" if spec.groups else "compute the loss from trainable parameters (requires_grad)"
        raise InputError(f"no gradient reaches a parameter that is not frozen: there is nothing to train; {remedy}")
    narrow = min((name for name in found.trained if found.state[name].spec.dtype == "float16"), default="")
    if narrow and job.precision == "fp16":
        raise InputError(
            f"precision = 'fp16' with the float16 parameter {narrow!r}: without the loss scale, small gradients become 0 in "
            "float16; load the model in float32, or freeze the parameter"
        )
    return found


def send_weights(client: Client, bundle: Bundle) -> None:
    """Send the job's weights file, if it lies on this machine.

    Raises:
        CheckpointError: there is no such file, or it does not fit the model.
    """
    weights = bundle.job.weights
    if weights.source != "file" or weights.home != "submitter":
        return
    source = Weights.open(weights.path)
    match = match_states(source, bundle.graph.states, strict=weights.strict, sources=expressions_from_json(weights.sources))
    specs = {name: bundle.graph.state[name].spec for name in match.names}
    client.send_weights(bundle.run, encode(specs, lambda name: source.read(match.names[name], specs[name].dtype)))


def _same_structure(graphs: dict[int, Graph]) -> None:
    """One plan serves all sizes only if they differ in nothing but shapes."""
    forms = {size: [(op.name, op.target) for op in graph.ops] for size, graph in graphs.items()}
    first = next(iter(forms))
    for size, form in forms.items():
        if form != forms[first]:
            raise InputError(
                f"micro-batches of {first} and {size} samples give different operators, not just other shapes: "
                "use equal micro_batch_sizes, or a model whose forward does not depend on the batch size"
            )
