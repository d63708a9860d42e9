"""DCT (Gupta et al. 2021): rows and gradients of which only the largest values are sent.

One implementation in torch operations, the same on a CPU and on a GPU.
"""

from trec_qcomm.ext.dct.activation import sparsified_nbytes, sparsify_activation
from trec_qcomm.ext.dct.codecs import ForwardMask, Threshold, TopK

__all__ = ["ForwardMask", "Threshold", "TopK", "sparsified_nbytes", "sparsify_activation"]
