"""L-GreCo: gradients in every step, each layer through the codec that loses little there.

Source: Alimohammadi et al., "L-GreCo: Layerwise-Adaptive Gradient Compression for Efficient and Accurate Deep Learning" (2022).
Members measure what every codec would lose and send of each layer's gradient. All choose from the same sums (``codecs.choice``).
What differs: options may be of several families, errors are squared norms, and members measure one gradient of their own instead
of a sum over many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import LayerCodecs, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Command, Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_memory, check_number, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "LGreco"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LGreco(StrategyDefaults):
    """Each layer's gradient leaves when its backward has ended, through the codec that was chosen for it.

    ``codec``: of all layers before the first choice. ``options``: further codecs, separated by spaces. A choice has the fewest
    bytes with which all layers together lose at most ``error`` (relative 2-norm; 0: what ``codec`` alone would lose). ``every``:
    steps between two choices. A layer that other stages hold, too, has no codec, so its copies stay equal.
    """

    codec: str = "int4"
    options: str = "bf16 int8 int4 int2"
    error: float = 0.0
    every: int = 100
    memory: str = "none"

    def __post_init__(self) -> None:
        check_codec(self.traits)
        check_memory(self.codec, self.memory)
        check_number("error", self.error, below=1.0)
        check_steps("every", self.every, low=2)
        options: object = self.options  # what the user wrote, of any type
        if not isinstance(options, str) or not options.split():
            raise InputError(f"options = {self.options!r}: write codecs with spaces between them, e.g. 'int8 int4 topk:ratio=10'")

    @property
    def traits(self) -> Traits:
        """Gradients, in every step, with codecs by layer."""
        further = (option for option in str(self.options).split() if option != self.codec)
        chosen = LayerCodecs(options=("identity", self.codec, *further), error=self.error, every=self.every)
        return Traits(
            name="lgreco",
            sent=Sent.GRADIENTS,
            codec=self.codec,
            memory=self.memory,
            one_by_one=True,
            layer_codecs=chosen,
        )

    def step(self, step: int, world: World) -> Program:
        """One exchange for each layer; all means and the update come at the end."""
        group, weights = world.group, world.weights
        ready: dict[int, tuple[Command, ...]] = {}
        means: list[Command] = []
        for layer in reversed(world.every):
            codec = "identity" if layer in world.shared else world.codecs[layer] if world.codecs else self.codec
            send = Exchange(
                tag=f"{step}/{layer}",
                source="gradient",
                layers=(layer,),
                group=group,
                codec=codec,
                weights=weights,
                memory=self.memory,
            )
            ready[layer] = (send,)
            means.append(Mean(tag=send.tag, into="gradient", layers=(layer,), group=group, weights=weights))
        return Program(ready=ready, after=(*means, Update(layers=world.every)))


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"lgreco": LGreco}
