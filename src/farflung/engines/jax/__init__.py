"""The JAX engine: each stage is one function of XLA forward and one backward.

In the order of data flow:

``engine``          what ``get_engine("jax")`` gives
``verify``          the shape re-check
``program``         the operators of a stage as a function of JAX
``operators``       the table of operators
``precision``       what ``bf16`` computes in which element type
``memory_orders``   the order in which PyTorch stores the axes of values
``draws``           random numbers of operators, made on the host
``compiled_stage``  forward and backward, compiled
``runner``          one stage: forward, backward, update
``states``          states where XLA reads them
``warmup``, ``devices``, ``arrays``  measurement, devices, element types

``engines.host`` has what runs on the host: first values, gradients and optimizers.
"""
