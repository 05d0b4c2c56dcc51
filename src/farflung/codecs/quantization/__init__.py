"""Codecs that send fewer bits for each element.

``rotation``    spreads outliers before quantization
``levels``      small integers with one scale for each block
``quantized``   the codec: block quantization to 8, 4, 3, 2 or 1 bits
"""
