"""PlayedTransport: rounds of messages between played ranks, done before `start` returns.

Knows: rounds, process groups. Does not know: what the messages hold.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.transport import drive, run_round


class PlayedTransport:
    """Runner of collectives on a played rank: `Transport` without a thread of its own.

    DDP waits for the future in C++, where no other rank could run.
    """

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self._peers = Peers(pg)

    def start(
        self,
        rounds: Rounds,
        result: Tensor,
        on_wire_s: Callable[[float], None],
        name: str = "all-reduce",
    ) -> Future[Tensor]:
        """Run the rounds and return a future of `result`, as `Transport.start` does."""
        drive(rounds, partial(run_round, self._peers, name=name), on_wire_s)
        future: Future[Tensor] = torch.futures.Future()
        future.set_result(result)
        return future
