"""`auto` in a training on two ranks, whose steps take planted seconds."""

import copy
import json
from dataclasses import replace
from itertools import count

import pytest
import torch.distributed as dist
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from tests.integration.embedding.test_training_modes import POOLED, UNPOOLED, PipelineModel
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import CPU
from tests.integration.sharded_models.training import dense_optimizer as case_optimizer
from tests.integration.sharded_models.training import shard as shard_case
from tests.integration.small_model import dense_optimizer, same_weights, shard, train, weights
from trec_qcomm import QComm
from trec_qcomm.config import config_from_dict, config_to_dict, load_preset
from trec_qcomm.ext.auto import extension as extension_module
from trec_qcomm.ext.auto.choice import Choice
from trec_qcomm.lab.records import choice_of
from trec_qcomm.testing import run_ranks

ROWS = {"tables": "*", "forward": "identity", "backward": "identity"}
CHEAP = Choice(forward="fast", backward="int8", ids="packed", bags="distinct")


class PlantedClock:
    """Clock by which a step takes what its choice costs, and 3 times as much on rank 1."""

    def __init__(self, qcomm):
        self.extension = qcomm.session.extensions["auto"]
        self.now, self.cheap = 0.0, CHEAP

    def __call__(self):
        cost = sum(getattr(self.extension.choice, p) != v for p, v in vars(self.cheap).items())
        self.now += (1 + cost) * (1 + 2 * dist.get_rank())
        return self.now


def started(auto=None, *, state=None):
    mapping = {"auto": {"steps": 1, **(auto or {})}}
    qcomm = QComm(config_from_dict(config_to_dict(load_preset("auto")) | mapping))
    extension_module.perf_counter = PlantedClock(qcomm)
    if state is not None:
        qcomm.load_state_dict(copy.deepcopy(state[0]))
    dmp = shard(qcomm)
    if state is not None:
        dmp.load_state_dict(copy.deepcopy(state[1]))
    return qcomm, dmp, dense_optimizer(dmp)


def tuned():
    """Return what a training chose, in how many steps, and what its rank says of it."""
    qcomm, dmp, optimizer = started()
    extension = qcomm.session.extensions["auto"]
    trying = qcomm.summary().splitlines()[-1]
    steps = 0
    while extension.is_tuning and steps < 400:
        train(dmp, optimizer, range(steps, steps + 1))
        steps += 1
    in_force = {
        table: str(qcomm.session.collectives.rules.rule_for(table).backward)
        for table in qcomm.session.collectives.tables()
    }
    sends = qcomm.session.packs_ids, qcomm.session.merges_bags
    said = qcomm.summary().splitlines()[-1]
    return extension.choice, steps, trying, said, in_force, sends


def resumed():
    """Return whether a run that is resumed after the choice goes on with the same bits."""
    qcomm, dmp, optimizer = started({"choice": None})
    extension, step = qcomm.session.extensions["auto"], 0
    while extension.is_tuning:
        train(dmp, optimizer, range(step, step + 1))
        step += 1
    state = copy.deepcopy((qcomm.state_dict(), dmp.state_dict()))
    losses = train(dmp, optimizer, range(step, step + 3))
    before, again, its_optimizer = started(state=state)
    same = train(again, its_optimizer, range(step, step + 3)) == losses
    kept = before.session.extensions["auto"]
    after = QComm(before.config)  # loaded once it is sharded
    other = shard(after)
    other.load_state_dict(copy.deepcopy(state[1]))
    after.load_state_dict(copy.deepcopy(state[0]))
    same_late = train(other, dense_optimizer(other), range(step, step + 3)) == losses
    equal = same_weights(weights(again), weights(dmp))
    elsewhere = copy.deepcopy(state)
    elsewhere[0]["state"]["auto"]["choice"] = json.dumps([3, {"dense": "fast"}])
    begun_anew, _, _ = started(state=elsewhere)
    return (
        same,
        same_late,
        equal,
        kept.is_tuning,
        kept.choice,
        begun_anew.session.extensions["auto"].is_tuning,
    )


def tried_again():
    """Return the choices before and after another network makes it try again."""
    qcomm, dmp, optimizer = started({"retune_every": 5})
    extension, step = qcomm.session.extensions["auto"], 0
    choices = []
    for cheap in (CHEAP, Choice()):
        extension_module.perf_counter.cheap = cheap
        while extension.is_tuning:
            train(dmp, optimizer, range(step, step + 1))
            step += 1
        choices.append(extension.choice)
        for _ in range(5):
            was_tuning = extension.is_tuning
            train(dmp, optimizer, range(step, step + 1))
            step += 1
        choices.append((was_tuning, extension.is_tuning))
    return choices


def exact():
    """Return whether a given choice of plain TorchRec trains as TorchRec does, untried."""
    qcomm, dmp, optimizer = started({"choice": {}})
    stock = shard(None)
    same = train(dmp, optimizer, range(4)) == train(stock, dense_optimizer(stock), range(4))
    return same, same_weights(weights(dmp), weights(stock)), choice_of(qcomm)


def in_a_pipeline(case):
    """Return what is chosen where ids are sent before the step that they are for."""
    qcomm = QComm(config_from_dict(config_to_dict(load_preset("auto")) | {"auto": {"steps": 1}}))
    extension_module.perf_counter = PlantedClock(qcomm)
    dmp = shard_case(case, qcomm, PipelineModel(case))
    pipeline = TrainPipelineSparseDist(dmp, case_optimizer(dmp), CPU)
    batches = (batch(case, step % 8, dist.get_rank()) for step in count())
    extension, steps = qcomm.session.extensions["auto"], 0
    while extension.is_tuning and steps < 400:
        pipeline.progress(batches)
        steps += 1
    return extension.choice, steps


def all_of_it():
    piped = [in_a_pipeline(replace(c, tables=c.tables[:3])) for c in (POOLED, UNPOOLED)]
    return tuned(), resumed(), tried_again(), exact(), piped


@pytest.fixture(scope="module")
def outcomes():
    return list(zip(*run_ranks(all_of_it, 2), strict=True))


@pytest.mark.dist
def test_ranks_of_different_speed_choose_alike(outcomes):
    (choice, steps, trying, said, codecs, sends), other = outcomes[0]
    assert choice == other[0] == CHEAP
    assert steps == other[1] < 200
    assert trying == "auto: trying exact TorchRec"
    assert "(exact" in said
    assert set(codecs.values()) == {str(load_preset("int8").embedding[0].backward)}
    assert sends == (True, True)


@pytest.mark.dist
def test_a_resumed_run_keeps_the_choice_and_its_bits(outcomes):
    for same, same_late, equal, is_tuning, choice, begins_anew in outcomes[1]:
        assert same
        assert same_late
        assert equal
        assert (is_tuning, choice) == (False, CHEAP)
        assert begins_anew  # with another number of ranks


@pytest.mark.dist
def test_it_tries_again_when_it_is_told_to(outcomes):
    for first, around, second, _ in outcomes[2]:
        assert (first, second) == (CHEAP, Choice())
        assert around == (False, True)


@pytest.mark.dist
def test_a_choice_that_is_given_is_not_tried(outcomes):
    assert outcomes[3] == ((True, True, "exact TorchRec"),) * 2


@pytest.mark.dist
def test_a_pipeline_that_sends_ids_ahead_chooses_alike(outcomes):
    for pooled, unpooled in outcomes[4]:
        assert pooled == outcomes[4][0][0]
        assert unpooled == outcomes[4][0][1]
        assert pooled[0] == CHEAP
        assert (unpooled[0].forward, unpooled[0].ids) == ("int8", "packed")
        assert pooled[1] < 400 > unpooled[1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"auto": {}, "dense": {"codec": "float6"}}, "auto: has nothing to choose"),
        ({"embedding": [ROWS], "auto": {}, "guard": {}}, "auto: guard chooses codecs, too"),
        ({"embedding": [ROWS], "auto": {"candidates": ["fats"]}}, "'fats' is neither"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(config)
