"""The benchmark ``loss-study``: how codecs change the loss of real training, over several seeds.

``settings``     what ``--set`` changes
``tasks``        the models and their data
``runs``         one training under one codec
``loss_study``   the benchmark
``plot``         its figure
"""
