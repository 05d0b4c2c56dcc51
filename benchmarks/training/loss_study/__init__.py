"""The benchmarks ``loss-study`` and ``fusionllm-loss``: how codecs change the loss of real training.

``settings``     what ``--set`` changes
``tasks``        the models and their data
``runs``         one training under one codec
``loss_study``   the benchmark ``loss-study``, over several seeds
``fusionllm_loss``  the benchmark ``fusionllm-loss``: Figure 8 of FusionLLM
``plot``         its figure
"""
