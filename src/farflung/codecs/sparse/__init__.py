"""Codecs that send some elements only.

``selection``   which elements a codec keeps
``indices``     positions of the kept elements, entropy-coded
``values``      values of the kept elements
``topk``        the largest magnitudes
``randomk``     one random element of each stratum
"""
