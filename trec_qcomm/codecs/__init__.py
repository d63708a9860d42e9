"""Codecs: frozen dataclasses that configure the ops. Importing this package registers them all."""

from trec_qcomm.codecs.cast import Cast, Identity
from trec_qcomm.codecs.error_bounded import ErrorBounded
from trec_qcomm.codecs.float6 import Float6
from trec_qcomm.codecs.rowwise import Rowwise
from trec_qcomm.codecs.threshold import Threshold
from trec_qcomm.codecs.topk import ForwardMask, TopK
from trec_qcomm.ext.fbgemm.codec import Fbgemm

__all__ = [
    "Cast",
    "ErrorBounded",
    "Fbgemm",
    "Float6",
    "ForwardMask",
    "Identity",
    "Rowwise",
    "Threshold",
    "TopK",
]
