"""Every block of EXTENDING.md runs, and what stands at the doors sees or changes a training."""

import re
from pathlib import Path

import pytest
import torch
from torchrec.distributed import DistributedModelParallel

from tests.docs.test_training_page import FUSED_PARAMS, Model, batches, losses, make_plan
from trec_qcomm import QComm
from trec_qcomm.integration.extension import Extension
from trec_qcomm.testing import run_ranks

PAGE = Path(__file__).parents[2] / "trec_qcomm" / "docs" / "EXTENDING.md"


def int8():
    return QComm.from_preset("int8")


def bounded():
    rule = {"forward": {"codec": "error_bounded", "bound": 0.01}, "backward": "identity"}
    return QComm.from_dict({"embedding": [{"tables": "*", **rule}]})


class Standing(Extension):
    """Extension that does one thing to each collective."""

    def __init__(self, put):
        self.put = put

    def add_collective(self, collective, module):
        self.put(collective)


def extended(make, put):
    qcomm = make()
    qcomm.extend("mine", Standing(put))
    return qcomm


def receiver_of(observer_type):
    """Return an observer that also looks at what came in training."""

    class Receiver(observer_type):
        num_received = 0

        def looks_at_received(self, call):
            return call.is_training  # sums of row-wise tables are then taken apart

        def after_decoding(self, call, values, placed):
            self.num_received += values.numel()

    return Receiver()


def read_page():
    """Run all blocks in order; return their names."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names = {"qcomm": bounded()}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    return names


def trained(qcomm, steps=4, then=None):
    """Train, and return the losses; `then` is called with qcomm before the last step."""
    dmp = DistributedModelParallel(
        module=Model(),
        device=torch.device("cpu"),
        plan=make_plan(),
        **qcomm.dmp_arguments(fused_params=FUSED_PARAMS),
    )
    optimizer = torch.optim.SGD(dmp.module.over.parameters(), lr=0.1)
    seen = losses(dmp, optimizer, batches(0, steps - 1))
    if then is not None:
        then(qcomm)
    return seen + losses(dmp, optimizer, batches(steps - 1, 1))


def at_the_doors():
    names = read_page()
    mine = trained(names["qcomm"])
    resumed = bounded()
    resumed.load_state_dict(names["qcomm"].state_dict())
    small, names["small"].count = names["small"].count, 0
    resumed.state["mine"] = names["small"]
    lost, changed = bounded(), int8()
    lost.load_state_dict(names["qcomm"].state_dict())
    with pytest.raises(ValueError, match="mine: nothing of that name keeps state"):
        trained(lost)
    observer = receiver_of(names["Small"])

    def tighten(collective):
        collective.tolerances = names["Falling"](len(collective.layout.tables()))

    tighter = extended(bounded, tighten)
    tightly = trained(tighter, then=names["after_a_while"])
    kinds = {type(collective.tolerances).__name__ for collective in tighter.session.collectives}
    clipped = extended(
        int8, lambda collective: setattr(collective, "transform", names["Clipped"]())
    )
    return {
        "plain": trained(int8()),
        "observed": trained(extended(int8, lambda collective: collective.add_observer(observer))),
        "small": (small, names["small"].count),
        "received": (observer.num_received, observer.count),
        "tighter": (tightly, kinds),
        "bounded": trained(bounded()),
        "mine": mine,
        "clipped": trained(clipped),
        "changed": trained(changed, then=names["after_a_while"]),
        "codecs": repr(changed.session.collectives.rules.rule_for("t_item").backward),
    }


def test_what_stands_at_the_doors_does_what_the_page_says():
    for rank in run_ranks(at_the_doors, 2):
        assert rank["observed"] == rank["plain"]  # who looks on changes nothing
        assert rank["small"][0] == rank["small"][1] > 0
        assert min(rank["received"]) > 0
        assert rank["tighter"][0] != rank["bounded"]
        assert rank["tighter"][1] == {"Falling"}  # also after the change of codecs
        assert rank["clipped"] != rank["plain"]
        assert rank["mine"] not in (rank["bounded"], rank["tighter"][0])
        assert rank["changed"][:3] == rank["plain"][:3]  # losses; the new codec is of gradients
        assert rank["codecs"].startswith("Rowwise(bits=4, ")
