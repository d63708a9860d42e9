"""Every block of EXTENDING.md runs, and what stands at the doors sees or changes a training."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torchrec.distributed import DistributedModelParallel

from tests.docs.test_training_page import FUSED_PARAMS, Model, batches, losses, make_plan
from trec_qcomm import QComm, Rowwise, register_codec
from trec_qcomm.comm.rows.doors import CallTransform, Observer, TransformedRows
from trec_qcomm.core import registry
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.segments import Encoded
from trec_qcomm.integration.extension import Extension
from trec_qcomm.testing import check_codec, run_ranks

PAGE = Path(__file__).parents[2] / "trec_qcomm" / "docs" / "EXTENDING.md"


def read_page():
    """Run all blocks but the codec's, in order; return their names."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names = {
        "CallTransform": CallTransform, "Codec": Codec, "ClassVar": ClassVar, "Contract": Contract,
        "Encoded": Encoded, "Extension": Extension, "Observer": Observer, "QComm": QComm,
        "Rowwise": Rowwise, "TransformedRows": TransformedRows, "check_codec": check_codec,
        "dataclass": dataclass, "register_codec": register_codec, "torch": torch,
        "qcomm": QComm.from_preset("int8"),
    }  # fmt: skip
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
    saved = names["qcomm"].state_dict()
    resumed = QComm.from_preset("int8")
    resumed.load_state_dict(saved)
    largest, names["observer"].largest = names["observer"].largest, 0.0
    resumed.state["largest_gradient"] = names["Kept"]()
    changed = QComm.from_preset("int8")
    return {
        "plain": trained(QComm.from_preset("int8")),
        "observed": observed,
        "largest": largest,
        "kept": names["observer"].largest,
        "bounded": trained(names["bounded"]),
        "exactly bounded": trained(QComm(names["bounded"].config)),
        "clipped": trained(names["clipping"]),
        "changed": trained(changed, then=names["after_a_while"]),
        "codecs": repr(changed.session.collectives.rules.rule_for("t_item").backward),
        "half": registry.codec_type("half")().name,
    }


def test_what_stands_at_the_doors_does_what_the_page_says():
    for rank in run_ranks(at_the_doors, 2):
        assert rank["observed"] == rank["plain"]  # who looks on changes nothing
        assert rank["largest"] > 0
        assert rank["kept"] == rank["largest"]
        assert rank["bounded"] != rank["exactly bounded"]
        assert rank["clipped"] != rank["plain"]
        assert rank["changed"][:3] == rank["plain"][:3]  # losses; the new codec is of gradients
        assert rank["codecs"].startswith("Rowwise(bits=4, ")
        assert rank["half"] == "half"
