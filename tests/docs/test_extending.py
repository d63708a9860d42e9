"""Every block of EXTENDING.md runs, and what stands at the doors sees or changes a training."""

import re
from pathlib import Path

import pytest
import torch
from torchrec.distributed import DistributedModelParallel

from tests.docs.test_training_page import FUSED_PARAMS, Model, batches, losses, make_plan
from trec_qcomm import QComm
from trec_qcomm.testing import run_ranks

PAGE = Path(__file__).parents[2] / "trec_qcomm" / "docs" / "EXTENDING.md"


def int8():
    return QComm.from_preset("int8")


def bounded():
    rule = {"forward": {"codec": "error_bounded", "bound": 0.01}, "backward": "identity"}
    return QComm.from_dict({"embedding": [{"tables": "*", **rule}]})


def extended(make, extension):
    qcomm = make()
    qcomm.extend("mine", extension)
    return qcomm


def read_page():
    """Run all blocks in order; return their names."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names = {"qcomm": int8()}
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
    observed = trained(names["qcomm"])
    resumed = int8()
    resumed.load_state_dict(names["qcomm"].state_dict())
    largest, names["observer"].largest = names["observer"].largest, 0.0
    resumed.state["largest_gradient"] = names["Kept"]()
    lost, changed = int8(), int8()
    lost.load_state_dict(names["qcomm"].state_dict())
    with pytest.raises(ValueError, match="largest_gradient: nothing of that name keeps state"):
        trained(lost)
    tighter = extended(bounded, names["Tighter"]())
    tightly = trained(tighter, then=names["after_a_while"])
    kinds = {type(collective.tolerances).__name__ for collective in tighter.session.collectives}
    return {
        "plain": trained(int8()),
        "observed": observed,
        "largest": (largest, names["observer"].largest),
        "received": names["observer"].num_received,
        "tighter": (tightly, kinds),
        "bounded": trained(bounded()),
        "clipped": trained(extended(int8, names["Clipped"]())),
        "changed": trained(changed, then=names["after_a_while"]),
        "codecs": repr(changed.session.collectives.rules.rule_for("t_item").backward),
    }


def test_what_stands_at_the_doors_does_what_the_page_says():
    for rank in run_ranks(at_the_doors, 2):
        assert rank["observed"] == rank["plain"]  # who looks on changes nothing
        assert rank["largest"][0] == rank["largest"][1] > 0
        assert rank["received"] > 0
        assert rank["tighter"][0] != rank["bounded"]
        assert rank["tighter"][1] == {"TighterBounds"}  # also after the change of codecs
        assert rank["clipped"] != rank["plain"]
        assert rank["changed"][:3] == rank["plain"][:3]  # losses; the new codec is of gradients
        assert rank["codecs"].startswith("Rowwise(bits=4, ")
