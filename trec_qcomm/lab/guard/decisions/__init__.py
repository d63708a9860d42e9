"""Guard: the watch over codecs while a model trains, as decisions on numbers that all ranks share.

Knows: changes of the loss in percent, figures of tables by name, numbers of rungs. Does not know:
codecs, process groups, TorchRec, files.
"""

from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.lab.guard.decisions.by_values.signals import Signals
from trec_qcomm.lab.guard.decisions.events import Decision, Event, EventKind, Reason
from trec_qcomm.lab.guard.decisions.ladder import Key, Ladder
from trec_qcomm.lab.guard.decisions.limits import GuardLimits
from trec_qcomm.lab.guard.decisions.policy import GuardPolicy

__all__ = [
    "DIRECTIONS",
    "Decision",
    "Direction",
    "Event",
    "EventKind",
    "GuardLimits",
    "GuardPolicy",
    "Key",
    "Ladder",
    "Reason",
    "Signals",
]
