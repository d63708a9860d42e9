"""Codecs: the configured form of ops. Importing this package registers all of them."""

from trec_qcomm.codecs.cast import Cast
from trec_qcomm.codecs.identity import Identity
from trec_qcomm.codecs.rowwise import Rowwise

__all__ = ["Cast", "Identity", "Rowwise"]
