"""Trains a small transformer whose table of hashed n-grams lies on all ranks, row by row.

  python -m examples.ngrams                          8 bits, 2 ranks, text from a seed
  python -m examples.ngrams --codec int4 --ranks 4 --steps 2000
  python -m examples.ngrams --codec exact --every-id  what two plain all-to-alls send
  python -m examples.ngrams --text book.txt
  torchrun --nproc-per-node 2 -m examples.ngrams

To each token the model adds the rows of the two and of the three tokens that end there, hashed into
one table. Each rank has a part of the rows, and asks the others for those of its own tokens by
trec_qcomm.rows: two exchanges a step, and one back. Printed are the loss and what a rank sent.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.codecs import Cast, ErrorBounded, Float8, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.rows import ByModulo, RowChannel, exchange_rows
from trec_qcomm.testing import run_ranks

CODECS: dict[str, tuple[Codec, Codec]] = {  # of rows, and of their gradients
    "exact": (Identity(), Identity()),
    "bf16": (Cast("bf16"), Cast("bf16")),
    "int8": (Rowwise(8), Rowwise(8, "stochastic")),
    "float8": (Float8("e4m3"), Float8("e4m3", "stochastic")),
    "int4": (Rowwise(4), Rowwise(4, "stochastic")),
    "bounded": (ErrorBounded(0.01), ErrorBounded(0.01)),
}
NUM_TOKENS, LENGTH, WIDTH = 256, 64, 64


class NgramModel(nn.Module):
    """A causal transformer of two layers over tokens and the rows of n-grams that end in them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, NUM_TOKENS)

    def forward(self, text: Tensor, ngrams: Tensor) -> Tensor:
        """Return [B, L, tokens] logits. Args: text: [B, L].  ngrams: [B, L, 2, width] rows."""
        x = self.tokens(text) + self.places + ngrams.sum(2)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        logits: Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
        return logits


def ngram_ids(text: Tensor, num_rows: int) -> Tensor:
    """Return [B, L, 2] ids of the two and the three tokens that end at each place of [B, L]."""
    padded = nn.functional.pad(text, (2, 0))
    two = padded[:, 1:-1] * 1_000_003 + padded[:, 2:]
    three = (two * 1_000_003 + padded[:, :-2]) ^ (1 << 40)
    return torch.stack([two, three], 2) % num_rows


def made_text(size: int, seed: int) -> Tensor:
    """Return tokens of words that follow one another at random, as often as Zipf has it."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(97, 123, (2000, 5), generator=generator)
    words[:, 4] = 32
    chance = 1 / torch.arange(1.0, 2001)
    drawn = torch.multinomial(chance, size // 5 + 1, replacement=True, generator=generator)
    return words[drawn].reshape(-1)[:size]


def train(options: argparse.Namespace) -> dict[str, float]:
    """Return what this rank has to say of the training. Collective."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    channel = RowChannel(WIDTH, *CODECS[options.codec])
    owner = ByModulo(num_ranks)
    shard = nn.Parameter(0.02 * torch.randn(math.ceil(options.rows / num_ranks), WIDTH))
    model = DistributedDataParallel(NgramModel())
    dense = torch.optim.Adam(model.parameters(), 1e-3)
    sparse = torch.optim.Adagrad([shard], 0.05)
    text = made_text(1 << 20, 0) if options.text is None else read_text(options.text)
    generator = torch.Generator().manual_seed(rank + 1)
    sending = {"unique": not options.every_id, "packed_ids": not options.every_id}
    losses, seconds = [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        starts = torch.randint(len(text) - LENGTH - 1, (options.batch_size,), generator=generator)
        batch = text[starts[:, None] + torch.arange(LENGTH + 1)]
        ids = ngram_ids(batch[:, :-1], options.rows)
        logits = model(batch[:, :-1], exchange_rows(ids, shard, owner, channel, **sending))
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        shard.grad.div_(num_ranks)  # type: ignore[union-attr]
        sparse.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - begin)
        if rank == 0 and (step + 1) % max(options.steps // 10, 1) == 0:
            mean = statistics.fmean(losses[-options.steps // 10 :])
            print(f"step {step + 1} of {options.steps}: loss {mean:.4f}", flush=True)
    traffic = channel.collective.forward_traffic, channel.collective.backward_traffic
    rows, gradients = (int(t.wire_nbytes.sum()) + t.header_nbytes for t in traffic)
    return {
        "loss": sum(losses[-100:]) / len(losses[-100:]),
        "step_ms": 1e3 * statistics.median(seconds),
        "rows_kb": rows / options.steps / 1e3,
        "gradients_kb": gradients / options.steps / 1e3,
        "ids_kb": channel.ids_nbytes / options.steps / 1e3,
    }


def read_text(path: Path) -> Tensor:
    """Return the bytes of a file as tokens. Raises ValueError: it is too short to train on."""
    data = path.read_bytes()
    if len(data) < 100 * LENGTH:
        raise ValueError(f"text {path}: {len(data)} bytes, expected {100 * LENGTH} or more")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def main() -> int:
    """Train on so many ranks of this machine, and print what rank 0 says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--codec", choices=CODECS, default="int8", help="default int8")
    add("--every-id", action="store_true", help="send every id and row, also equal ones; plain ids")
    add("--ranks", type=int, default=2, help="default 2")
    add("--steps", type=int, default=300, help="default 300")
    add("--batch-size", type=int, default=16, help="texts of 64 tokens a rank (default 16)")
    add("--rows", type=int, default=100_000, help="of the table (default 100000)")
    add("--text", type=Path, help="a file to train on; default: made from a seed")
    options = parser.parse_args()
    try:
        if options.text is not None:
            read_text(options.text)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        said = train(options)
        is_first = dist.get_rank() == 0
        dist.destroy_process_group()
    else:
        said, is_first = run_ranks(train, options.ranks, options, timeout_s=24 * 3600.0)[0], True
    if is_first:
        print(f"{options.codec}:", ", ".join(f"{name} {value:.4g}" for name, value in said.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
