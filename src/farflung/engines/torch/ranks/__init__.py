"""A rank of a site: PyTorch on one device, joined with the other ranks by torch.distributed.

- ``group``: joins the ranks, and moves tensors among them.
- ``engine``: the engine of a rank.
- ``shards``: parameters that lie on their owner, and elsewhere only while a block needs them.
- ``sharded_states``: the states of a stage with such parameters.
- ``block_gradients``: their gradients, added block after block.
- ``sharded_runner``: a stage on a rank that gathers them.
- ``vocabulary``: an embedding and a loss of which this rank has some words.
- ``tensor_runner``: a stage that all ranks compute together; ``tensor_states``: its states; ``tensor_program``: where ranks add.
- ``runner``: a stage on a rank: micro-batches of its own, sums and updates of the parameters that it owns.
"""
