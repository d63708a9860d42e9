"""Codecs: frozen dataclasses that configure the ops. Importing this package registers them.

Codecs of extensions (ext) are imported when a config or a frame names them (core.registry).
"""

from trec_qcomm.codecs.cast import Cast, Identity
from trec_qcomm.codecs.error_bounded import ErrorBounded
from trec_qcomm.codecs.minifloat import Float6, Float8
from trec_qcomm.codecs.rowwise import Rowwise

__all__ = [
    "Cast",
    "ErrorBounded",
    "Float6",
    "Float8",
    "Identity",
    "Rowwise",
]
