"""Codecs: frozen dataclasses that configure the ops. Importing this package registers them.

Codecs of extensions (ext) are imported when a config or a frame names them (core.registry).
"""

from trec_qcomm.codecs.cast import Cast as Cast
from trec_qcomm.codecs.cast import Identity as Identity
from trec_qcomm.codecs.error_bounded import ErrorBounded as ErrorBounded
from trec_qcomm.codecs.minifloat import Float6 as Float6
from trec_qcomm.codecs.minifloat import Float8 as Float8
from trec_qcomm.codecs.rowwise import Rowwise as Rowwise
