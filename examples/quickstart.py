"""A sharded model with its embedding all-to-all at 4 bits, in one page.

python examples/quickstart.py             two ranks on this machine, a few seconds
torchrun --nproc-per-node 2 examples/quickstart.py
python -m trec_qcomm report runs/quickstart.jsonl      draws what was sent and learned
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel

import trec_qcomm
from trec_qcomm.lab.records import TrainingRecord, append

CONFIG = Path(__file__).parents[1] / "configs" / "int4.yaml"
RECORDS = Path("runs/quickstart.jsonl")
FEATURES = ["user", "item"]
BATCH, DIM, NUM_IDS = 512, 64, 10_000


class Model(torch.nn.Module):
    """Two tables into one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"embedding_dim": DIM, "num_embeddings": NUM_IDS}
        tables = [EmbeddingBagConfig(name=f"t_{f}", feature_names=[f], **sizes) for f in FEATURES]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.over = torch.nn.Linear(len(FEATURES) * DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.over(self.bags(features).values())


def main(local_rank: int = 0, world_size: int | None = None) -> None:
    """Shard, train 20 steps, show and record what was sent, on one rank."""
    if world_size is not None:
        os.environ |= {"RANK": str(local_rank), "WORLD_SIZE": str(world_size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    qcomm = trec_qcomm.QComm.from_yaml(CONFIG)
    fused_params = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.05}
    model = DistributedModelParallel(
        module=Model(), device=torch.device("cpu"), **qcomm.dmp_arguments(fused_params=fused_params)
    )
    dense = [p for name, p in model.named_parameters() if ".over." in f".{name}"]
    optimizer, losses = torch.optim.Adam(dense, lr=0.01), []
    for step in range(20):
        ids = torch.randint(NUM_IDS, (len(FEATURES) * BATCH,))
        lengths = torch.ones(len(FEATURES) * BATCH, dtype=torch.int32)
        loss = (model(KeyedJaggedTensor(FEATURES, ids, lengths=lengths)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step:2}: loss {losses[-1]:.4f}")
    if dist.get_rank() == 0:
        setup = {"batch_size": BATCH, "embedding_dim": DIM}  # equal in runs that are compared
        append(RECORDS, TrainingRecord.from_qcomm(qcomm, name="int4", losses=losses, setup=setup))
        print(qcomm.summary(), f"python -m trec_qcomm report {RECORDS}    draws it", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main() if "RANK" in os.environ else mp.spawn(main, args=(2,), nprocs=2)
