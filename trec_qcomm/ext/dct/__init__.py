"""DCT (Gupta et al. 2021): send only the largest values of rows and gradients.

One implementation in torch operations, the same on a CPU and on a GPU.
"""

from trec_qcomm.ext.dct.activation import sparsified_nbytes, sparsify_activation
from trec_qcomm.ext.dct.codecs import ForwardMask, Threshold, TopK

__all__ = ["ForwardMask", "Threshold", "TopK", "sparsified_nbytes", "sparsify_activation"]
