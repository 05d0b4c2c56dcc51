"""Forward-only work through the stages that train.

- ``forward_pass``: a forward-only graph cut along the training stages, and one micro-batch through it.
- ``evaluation``: ``Evaluation``: means over the job's evaluation micro-batches.
- ``generation``: text from the job's prompt.
- ``serving``: ``Serving``: batches of tokens of several requests, with key-value caches.
- ``sampling``: draws tokens from logits.
"""
