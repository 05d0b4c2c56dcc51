"""Running a schedule without time: is every action there once, can it finish, how much is in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farflung.errors import PlanError
from farflung.schedules.base import Action, ActionKind

__all__ = ["check_schedule", "in_flight", "retained", "splits"]


def in_flight(order: Sequence[Action]) -> int:
    """The most micro-batches of one stage that have been forward and not yet (wholly) backward."""
    now = most = 0
    last = ActionKind.WEIGHT if splits(order) else ActionKind.BACKWARD
    for action in order:
        now += (action.kind is ActionKind.FORWARD) - (action.kind is last)
        most = max(most, now)
    return most


def retained(order: Sequence[Action]) -> int:
    """The most that one stage retains at once, in the activations of a micro-batch.

    A micro-batch between its two parts of a split backward counts twice: its activations, and the gradients of the results of
    operators that read parameters, which are at most as large.
    """
    now = most = 0
    split = splits(order)
    for action in order:
        match action.kind:
            case ActionKind.FORWARD:
                now += 1
            case ActionKind.BACKWARD:
                now += 1 if split else -1
            case ActionKind.WEIGHT:
                now -= 2
        most = max(most, now)
    return most


def splits(order: Sequence[Action]) -> bool:
    """Whether the order has the gradients of parameters as actions of their own."""
    return any(action.kind is ActionKind.WEIGHT for action in order)


def check_schedule(
    orders: Sequence[Sequence[Action]], micro_batches: int, edges: Iterable[tuple[int, int]] | None = None
) -> tuple[Action, ...]:
    """Run the actions as far as they go and return them in an order in which they can run.

    ``orders``: for each stage its actions. ``edges``: (source, target) pairs of stages that exchange values (default: a
    chain); a forward waits for the forwards of its sources, a backward for its own forward and the backwards of its targets.
    Cost: each action is tried once per change of its neighbours, O(actions * edges per stage).

    Raises:
        PlanError: an action is missing, foreign, repeated or out of order, or the stages wait for each other forever.
    """
    stages = len(orders)
    pairs = set(edges) if edges is not None else {(s, s + 1) for s in range(stages - 1)}
    for stage, order in enumerate(orders):
        _check_order(stage, order, micro_batches)
    sources: list[list[int]] = [[] for _ in range(stages)]
    targets: list[list[int]] = [[] for _ in range(stages)]
    for source, target in sorted(pairs):
        if not (0 <= source < target < stages):
            raise PlanError(f"an edge leads from stage {source} to stage {target} of {stages}; edges lead to later stages only")
        sources[target].append(source)
        targets[source].append(target)
    done: set[Action] = set()
    ran: list[Action] = []
    at = [0] * stages
    waiting = list(range(stages))
    while waiting:
        stage = waiting.pop()
        while at[stage] < len(orders[stage]):
            action = orders[stage][at[stage]]
            if not all(need in done for need in _needs(action, sources[stage], targets[stage])):
                break
            done.add(action)
            ran.append(action)
            at[stage] += 1
            waiting.extend({ActionKind.FORWARD: targets, ActionKind.BACKWARD: sources}.get(action.kind, [[]] * stages)[stage])
    stuck = [str(orders[stage][at[stage]]) for stage in range(stages) if at[stage] < len(orders[stage])]
    if stuck:
        raise PlanError(f"the schedule can't finish: {', '.join(stuck)} wait for each other; use the schedule gpipe or 1f1b")
    return tuple(ran)


def _needs(action: Action, sources: Sequence[int], targets: Sequence[int]) -> Iterable[Action]:
    if action.kind is ActionKind.FORWARD:
        return (Action(source, ActionKind.FORWARD, action.micro_batch) for source in sources)
    if action.kind is ActionKind.WEIGHT:
        return ()
    return (Action(target, ActionKind.BACKWARD, action.micro_batch) for target in targets)


def _check_order(stage: int, order: Sequence[Action], micro_batches: int) -> None:
    kinds = [kind for kind in ActionKind if kind is not ActionKind.WEIGHT or splits(order)]
    names = " and ".join(kind.value for kind in kinds)
    rule = f"stage {stage} must run {names} of micro-batches 0 to {micro_batches - 1} once, each by ascending micro-batch"
    for kind in kinds:
        numbers = [action.micro_batch for action in order if action.kind is kind]
        if numbers != list(range(micro_batches)):
            raise PlanError(f"{rule}; its order of {kind.value} is {numbers}")
    seen: set[Action] = set()
    before = {ActionKind.BACKWARD: ActionKind.FORWARD, ActionKind.WEIGHT: ActionKind.BACKWARD}
    for action in order:
        if action.stage != stage:
            raise PlanError(f"{rule}; {action} belongs to another stage")
        earlier = before.get(action.kind)
        if earlier is not None and Action(stage, earlier, action.micro_batch) not in seen:
            raise PlanError(f"{rule}; {action} stands before its {'forward' if earlier is ActionKind.FORWARD else 'backward'}")
        seen.add(action)
