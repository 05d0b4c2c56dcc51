"""Micro-batches for the placeholders of this machine's stages: from this machine's files, or from the submitting process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from farflung.data import Loader, Tokenizer, check_vocabulary, open_source, placeholders_of, tokenizer_of
from farflung.data.base import Source
from farflung.data.timed_reads import TimedReads
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.ids import derive_seed
from farflung.job import JobSpec
from farflung.memory_budget import MemoryBudget
from farflung.messages.submission import Bundle
from farflung.step.run_setup import Phase, RunSetup, data_key

__all__ = ["CallerFeed", "DataKey", "FileFeed", "TimedFeed"]

#: Kind of data, step, micro-batch, placeholder.
DataKey = tuple[str, int, int, str]


class CallerFeed:
    """Micro-batches that the submitting process sends, each array once for this machine. Only the compute thread calls."""

    def __init__(self, setup: RunSetup, take: Callable[[DataKey], Array]) -> None:
        """``take`` waits for an array of the submitter."""
        self._setup, self._take = setup, take
        #: The array, and how many stages here have yet to read it.
        self._stored: dict[DataKey, tuple[Array, int]] = {}
        graph = setup.eval_graph
        cut = () if graph is None else setup.side_cut(graph)
        self._evaluated = [piece for stage, piece in cut if setup.primary(stage) == setup.device]

    @property
    def stored(self) -> int:
        """How many arrays wait for further readers."""
        return len(self._stored)

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The arrays of placeholders ``names``."""
        return {name: self._one((data_key(phase), step, micro_batch, name), phase) for name in names}

    def _one(self, key: DataKey, phase: Phase) -> Array:
        if key not in self._stored:
            readers = sum(key[3] in piece.placeholders for piece in self._pieces(phase, key[2]))
            self._stored[key] = (self._take(key), readers)
        array, left = self._stored.pop(key)
        if left > 1:
            self._stored[key] = (array, left - 1)
        return array

    def _pieces(self, phase: Phase, micro_batch: int) -> Sequence[SubGraph]:
        """The sub-graphs that run here for one micro-batch."""
        if phase is Phase.EVAL:
            return self._evaluated
        setup = self._setup
        return [setup.subgraphs[index] for index in setup.own_stages if setup.places[index][micro_batch] == setup.device]

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as numbers: the tokenizer is at the submitter."""
        return " ".join(map(str, tokens))


class FileFeed:
    """The job's data for the placeholders that this worker's stages read; raw data never leave the machine."""

    def __init__(self, bundle: Bundle, setup: RunSetup, base: Path, *, confined: bool = True) -> None:
        """Open what this machine's stages read: a stage in the middle needs no data.

        ``confined``: a job may read below ``base`` and the standard library only.

        Raises:
            DataError: something is missing; the text says what and what to do.
            InputError: the data do not fit the model's inputs.
            MemoryExceeded: a micro-batch takes more than the budget of this process.
        """
        job = self._job = bundle.job
        self._setup = setup
        self._source = open_source(job.data, base, confined=confined)
        wanted = {name for index in setup.own_stages for name in setup.subgraphs[index].placeholders}
        _check_room(bundle.graph, wanted, setup.budget)
        self._train = _loader(job, bundle.graph, self._source, wanted)
        self._eval: Loader | None = None
        if bundle.eval_graph is not None and job.evaluate.batches:
            wanted = _own(bundle.eval_graph, setup)
            _check_room(bundle.eval_graph, wanted, setup.budget)
            seed, sizes = derive_seed("evaluate", job.seed), (max(bundle.graphs),)
            whole = job.model_copy(update={"micro_batch_sizes": sizes, "seed": seed, "data": job.data.unchanged})
            held_out = open_source(job.data, base, split="eval", confined=confined) if wanted else None
            self._eval = _loader(whole, bundle.eval_graph, held_out, wanted)
        self._prompt = bundle.generate_graph is not None and job.generate.tokens > 0 and _writes(bundle.generate_graph, setup)

    def check(self) -> None:
        """Check that this machine has the data that it reads, before the run starts.

        Raises:
            DataError: something is missing; the text says what and what to do.
        """
        for loader in (self._train, self._eval):
            if loader is not None:
                self._check_vocabulary(loader)
                loader.source.check(tuple(dict.fromkeys(loader.fields.values())))
                loader.fingerprint()
        if self._prompt:
            self._tokenizer().encode(self._job.generate.prompt)

    def _check_vocabulary(self, loader: Loader) -> None:
        graph = self._setup.graph
        tokenizer = tokenizer_of(loader.source)
        if tokenizer is not None:
            check_vocabulary(self._job.data, graph, loader.fields, tokenizer.size)

    @property
    def samples(self) -> int | None:
        """How many there are to train on (None: nothing is read here)."""
        return None if self._train is None else self._train.sampler.size

    def fingerprint(self) -> dict[str, str]:
        """Content hashes of what this machine reads for the training."""
        return {} if self._train is None else self._train.fingerprint()

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The arrays of placeholders ``names``."""
        if phase is Phase.GENERATE:
            return {names[0]: np.asarray(self._tokenizer().encode(self._job.generate.prompt), dtype=np.int64)}
        loader = self._train if phase is Phase.TRAIN else self._eval
        assert loader is not None  # a stage that reads something has a loader
        return loader.batch(step, micro_batch, names) if phase is Phase.TRAIN else loader.batch(micro_batch, 0, names)

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as text."""
        return self._tokenizer().decode(tokens)

    def _tokenizer(self) -> Tokenizer:
        found = tokenizer_of(self._source)
        if found is None:
            raise InputError("text can only be generated from data of text or chats: remove [generate] from the job")
        return found


class TimedFeed:
    """A feed whose micro-batches come in time, or the run ends here. Only the compute thread calls."""

    def __init__(self, feed: FileFeed, reads: TimedReads, limit: float) -> None:
        """``limit``: seconds that a micro-batch may take."""
        self._feed, self._reads, self._limit = feed, reads, limit

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The arrays of placeholders ``names``.

        Raises:
            DataError: they have not come in time.
        """
        what = f"micro-batch {micro_batch} of step {step}"
        return self._reads.read(what, partial(self._feed.provide, phase, step, micro_batch, names), self._limit)

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as text."""
        return self._feed.decode(tokens)


def _loader(job: JobSpec, graph: Graph, source: Source | None, wanted: set[str]) -> Loader | None:
    if source is None or not wanted:
        return None
    return Loader(job.data, source, placeholders_of(graph), job.micro_batch_sizes, job.seed, wanted)


def _check_room(graph: Graph, wanted: set[str], budget: MemoryBudget) -> None:
    """See that a micro-batch of the placeholders ``wanted`` fits into ``budget``: a job says how long its samples are."""
    nbytes = sum(op.outputs[0].nbytes for op in graph.placeholders if op.name in wanted)
    with budget.reserved(nbytes, "a micro-batch of the data"):
        pass


def _own(graph: Graph, setup: RunSetup) -> set[str]:
    pieces = setup.side_cut(graph)
    return {name for stage, piece in pieces if setup.primary(stage) == setup.device for name in piece.placeholders}


def _writes(graph: Graph, setup: RunSetup) -> bool:
    """Whether this worker reads tokens or chooses them."""
    pieces = [(setup.primary(stage), piece) for stage, piece in setup.side_cut(graph)]
    made = graph.position[dict(graph.outputs)["logits"].op]
    return any(device == setup.device and (piece.placeholders or piece.start <= made < piece.stop) for device, piece in pieces)
