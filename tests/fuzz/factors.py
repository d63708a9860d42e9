"""Search with damaged messages of low-rank all-reduces: factors, and parameters sent beside them.

One message of one rank is damaged on its way. Promise: a mean of the right shape (any values), or a
CorruptFrameError that names the sender.
"""

import torch

from tests.comm.dense.test_low_rank import gradients, ranks, shapes
from tests.fuzz.frames import mutant
from trec_qcomm import Cast, Float6, Rowwise
from trec_qcomm.comm.rounds import Round, Rounds
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.lab.ranks.rounds import play

ALGORITHMS = (("two_shot", 2), ("two_shot", 3), ("ring", 3), ("recursive_doubling", 2))
CODECS = (Float6("e4m1", "stochastic"), Cast("bf16"), Rowwise(8))
FORMS = [(codec, *algorithm) for codec in CODECS for algorithm in ALGORITHMS]


def damaged(rounds: Rounds, place: int, generator: torch.Generator) -> Rounds:
    """Pass the rounds of one rank on; the message number `place` that it sends is damaged."""
    wanted = next(rounds)
    while True:
        sends = list(wanted.sends)
        if 0 <= place < len(sends) and sends[place][1].numel():
            peer, message = sends[place]
            # An empty one would be a peer that is lost.
            sends[place] = peer, m if (m := mutant(message, generator)).numel() else message
        place -= len(sends)
        received = yield Round(sends, wanted.sources, wanted.nbytes, wanted.max_nbytes)
        try:
            wanted = rounds.send(received)
        except StopIteration:
            return


def search(num_cases: int, seed: int) -> int:
    """Run `num_cases` all-reduces with a damaged message each; return how many were refused.

    Raises: AssertionError: no sender named. Whatever is raised that is no CorruptFrameError.
    """
    generator, refused = torch.Generator().manual_seed(seed), 0
    for n in range(num_cases):
        codec, algorithm, size = FORMS[n % len(FORMS)]
        sender, place = (int(torch.randint(m, (1,), generator=generator)) for m in (size, 6))
        reductions = ranks(size, codec, algorithm, error_feedback=True)
        rounds = [r.start(shapes(), gradients(0, rank)) for rank, r in enumerate(reductions)]
        rounds[sender] = damaged(rounds[sender], place, generator)
        try:
            play(rounds)
        except CorruptFrameError as error:
            if error.rank != sender:
                raise AssertionError(f"{error} does not name rank {sender}") from error
            refused += 1
    return refused
