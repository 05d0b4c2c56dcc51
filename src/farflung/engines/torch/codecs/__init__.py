"""Codecs of tensors where they lie, with the bytes of the NumPy codecs.

In the order of data flow:

``value_encoder``     the values and gradients that leave the device encoded
``encode``            an array's layout and payload from a tensor
``quantize``          block quantization by tensor operators
``topk``              top-k by tensor operators or kernels; PyTorch's own top-k
``kernels``           when kernels take a tensor
``triton_quantization``, ``triton_selection``  the kernels
"""

from farflung.engines.torch.codecs.encode import encode_tensor
from farflung.engines.torch.codecs.value_encoder import ValueEncoder

__all__ = ["ValueEncoder", "encode_tensor"]
