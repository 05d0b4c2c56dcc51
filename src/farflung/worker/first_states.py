"""Where the states of a run's stages come from: retained states of workers, a checkpoint, or a weights file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from farflung.checkpoint import Weights, match_states
from farflung.checkpoint.manifest import OPTIMIZER
from farflung.checkpoint.weights import Match, check_shape
from farflung.data.base import Place
from farflung.data.files import inside, resolve
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, DataError, WireError
from farflung.graph.ir import StateKind
from farflung.graph.weight_expressions import expressions_from_json
from farflung.messages.array_stream import PIECE_BYTES, join_pieces
from farflung.messages.data import LentPiece, StatesWanted
from farflung.messages.submission import Bundle
from farflung.messages.wire_form import encode
from farflung.object_store import is_remote
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.stages.state_copies import most_state_bytes, most_state_tensors
from farflung.step.stages.state_hashes import state_hashes
from farflung.transports.base import Endpoint, Urgency
from farflung.worker.retained_states import Continuation, RetainedStates

__all__ = ["FileStates", "FirstStates", "StateFetch", "weights_path"]


class StateFetch:
    """The states that a part begins with when workers have retained them.

    What this worker has retained stays where it is. The rest comes from the peers that the broker names, over the links that the
    run uses. ``fetch`` waits on the compute thread. Transport threads call ``receive`` and ``complete``.
    """

    def __init__(self, continuation: Continuation, run: str, attempt: int, retained: RetainedStates) -> None:
        self._from, self._run, self._attempt, self._retained = continuation, run, attempt, retained
        #: Of each peer that sends states: the pieces so far, their bytes, and the most bytes and pieces that it may send.
        self._pieces: dict[str, list[LentPiece]] = {}
        self._bytes: dict[str, int] = {}
        self._limits: dict[str, tuple[int, int]] = {}
        self._found: dict[str, Array] = {}

    @property
    def sources(self) -> Iterable[str]:
        """The peers that send states."""
        return self._from.moves.keys()

    def fetch(self, setup: RunSetup, endpoint: Endpoint, mailbox: Inbox) -> None:
        """Wait until everything that the own stages need is here.

        Raises:
            ConnectionLost: a peer is lost, or has not retained the states.
            WireError: what came is malformed, or a copy differs from what its owner computed.
        """
        moves, step, graph = self._from.moves, self._from.step, setup.graph
        self._retained.settle(self._run, self._attempt, self._from, setup.peers)
        for source, names in moves.items():
            most = most_state_bytes(setup, names)
            self._limits[source] = most, most_state_tensors(names) + most // PIECE_BYTES
            request = StatesWanted(run=setup.run, base=self._run, attempt=self._attempt, names=tuple(sorted(names)))
            endpoint.post(source, encode(request), Urgency.CONTROL)
        wanted = {name for index in setup.own_stages for name in setup.subgraphs[index].states}
        self._found = self._retained.read(self._run, step, wanted)
        for source in moves:
            pieces = deque(mailbox.take(("lent", source)))
            each = (pieces.popleft() for _ in range(len(pieces)))  # a piece is freed when it is joined
            try:
                joined = join_pieces(each, setup.budget, self._limits[source][0])
            except WireError as error:
                raise WireError(f"the states that {source} sends: {error}").blaming(source) from error
            self._found |= self._checked(source, joined)
        constant = {name for name in wanted if graph.state[name].kind is StateKind.CONSTANT}
        missing = sorted(wanted - set(self._found) - constant)
        if missing:
            raise ConnectionLost(f"no worker has retained {missing[0]!r} after {step} steps")

    def _checked(self, source: str, arrays: dict[str, Array]) -> dict[str, Array]:
        if self._from.hashes:
            for name, found in state_hashes(arrays).items():
                if self._from.hashes.get(name, found) != found:
                    text = f"the copy of {name!r} that {source} sends is not what its owner computed"
                    raise WireError(text).blaming(source)
        return arrays

    def receive(self, peer: str, piece: LentPiece) -> None:
        """Store a piece of the states that ``peer`` sends.

        Raises:
            WireError: ``peer`` was not asked, or sends too much.
        """
        most, count = self._limits_of(peer)
        self._bytes[peer] = self._bytes.get(peer, 0) + memoryview(piece.sections[0]).nbytes
        pieces = self._pieces.setdefault(peer, [])
        if self._bytes[peer] > most:
            raise WireError(f"{peer} sends more than {most} bytes of states, which is more than those have")
        if len(pieces) >= count:
            raise WireError(f"{peer} sends more than {count} pieces of states, which is more than those have")
        pieces.append(piece)

    def complete(self, peer: str, mailbox: Inbox) -> None:
        """Let ``fetch`` continue with the pieces of ``peer``, which has sent all of them.

        Raises:
            WireError: ``peer`` was not asked.
        """
        self._limits_of(peer)
        mailbox.put(("lent", peer), self._pieces.pop(peer, []))

    def _limits_of(self, peer: str) -> tuple[int, int]:
        if peer not in self._limits:
            raise WireError(f"{peer} was not asked for states of run {self._run}; they are refused")
        return self._limits[peer]

    def states(self, names: Sequence[str]) -> dict[str, Array]:
        """Those of the states ``names`` that were found."""
        return {name: self._found[name] for name in names if name in self._found}

    def optimizer(self, parameters: Sequence[str]) -> dict[str, Array]:
        """The optimizer slots of ``parameters``."""
        slots = {key.removeprefix(OPTIMIZER): value for key, value in self._found.items() if key.startswith(OPTIMIZER)}
        mine = frozenset(parameters)
        return {key: value for key, value in slots.items() if key.split("/", 1)[1] in mine}


class FirstStates:
    """First states of a run's stages, from the source that the broker names. The compute thread reads them."""

    def __init__(
        self, source: str, stored: Callable[[str, Sequence[str]], Mapping[str, Array]], fetch: StateFetch | None
    ) -> None:
        """``source``: "checkpoint", "weights" (both at the broker), "file", or anything else for initializers.

        ``stored`` reads tensors of a source. ``fetch``: states that workers have retained, which take precedence.
        """
        self._source, self._stored, self._fetch = source, stored, fetch

    @property
    def fetch(self) -> StateFetch | None:
        """Where retained states come from (None: this part does not begin with any, or has begun)."""
        return self._fetch

    def begun(self) -> None:
        """The stages have their first states: the fetched arrays are not needed any more."""
        self._fetch = None

    def use_checkpoint(self) -> None:
        """The broker has a checkpoint of this run now: read from it if the run goes back."""
        self._source = "checkpoint"

    def read(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        """The first values of the states ``names``; None: replay the recorded initializers."""
        if self._fetch is not None:
            return self._fetch.states(names)
        return self._stored(self._source, names) if self._source in ("checkpoint", "weights", "file") else None

    def optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        """Optimizer slots of ``parameters`` (empty: the run begins anew)."""
        if self._fetch is not None:
            return self._fetch.optimizer(parameters)
        return self._stored("optimizer", parameters) if self._source == "checkpoint" else {}


class FileStates:
    """States from the job's weights file, in another tool's names (missing ones only if the job is not strict)."""

    def __init__(self, bundle: Bundle, place: Place) -> None:
        self._bundle, self._place = bundle, place

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """The states ``names``.

        Raises:
            CheckpointError: the file is damaged, or does not fit the model.
            DataError: as ``weights_path``.
        """
        weights, match = self._opened
        state = self._bundle.graph.state
        chosen = {name: match.names[name] for name in names if name in match.names}
        for name, source in chosen.items():
            check_shape(weights, state[name], source)
        return {name: weights.read(source, state[name].spec.dtype) for name, source in chosen.items()}

    @cached_property
    def _opened(self) -> tuple[Weights, Match]:
        spec = self._bundle.job.weights
        weights = Weights.open(weights_path(spec.path, self._place))
        sources = expressions_from_json(spec.sources)
        return weights, match_states(weights, self._bundle.graph.states, strict=spec.strict, sources=sources, only=())


def weights_path(path: str, place: Place) -> Path | str:
    """The file (or folder of files) of weights on this machine, or a URL.

    Raises:
        DataError: the path, or a file in it, leads out of the data folder, and this machine confines jobs to the folder.
    """
    if is_remote(path):
        if place.confined:
            raise DataError(
                f"weights.path = {path!r} is a URL, and jobs may not make this machine fetch files: copy the files into its data "
                'folder, set weights.home = "submitter", or start this worker with --any-path'
            )
        return path
    found = resolve(path, place)
    if place.confined and found.is_dir():
        inside(sorted(found.iterdir()), path, place)
    return found
