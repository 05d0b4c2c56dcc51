"""A rank of a site: PyTorch on one device, joined with the other ranks by torch.distributed.

- ``group``: joins the ranks, and moves tensors among them.
- ``engine``: the engine of a rank.
- ``runner``: a stage on a rank: micro-batches of its own, sums and updates of the parameters that it owns.
"""
