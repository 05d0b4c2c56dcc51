"""A site: one engine whose stages compute on several devices of a machine at the same time, one process (rank) for each.

In the order in which a call passes through:

- ``devices``: which devices the owner named (``farflung join --devices``).
- ``engine``: ``SiteEngine`` is a worker's engine; ``SiteAttempt`` is that of one attempt, with its ranks.
- ``runner``: a ``StageRunner`` of it; gives each rank micro-batches, and calls for sums and updates on all ranks.
- ``tensor_runner``: another one, whose ranks compute each micro-batch together; ``parts``: what each rank has of an array.
- ``rank``: the channel to one rank, on which a call can be begun before the answer of another rank is here.
- ``shards``: which rank owns which parameter.

What a rank does with torch.distributed is in ``engines.torch.ranks``.
"""

from farflung.engines.site.devices import ALL_DEVICES, check_devices, parse_devices
from farflung.engines.site.engine import SiteAttempt, SiteEngine
from farflung.engines.site.runner import SiteRunner

__all__ = ["ALL_DEVICES", "SiteAttempt", "SiteEngine", "SiteRunner", "check_devices", "parse_devices"]
