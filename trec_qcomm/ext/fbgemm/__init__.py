"""Rows coded by FBGEMM's own operators, in FBGEMM's layout. Wire: FORMAT.md, "fbgemm".

`operators` calls FBGEMM. `codec` gathers rows for it and places the bytes that it wrote. A row has
the bytes that the operator wrote on this device.
"""

from trec_qcomm.ext.fbgemm.layouts import LAYOUTS
from trec_qcomm.ext.fbgemm.operators import is_installed

__all__ = ["LAYOUTS", "is_installed"]
