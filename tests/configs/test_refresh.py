"""A density that falls at first, in a file: its round trip, and errors that name the field."""

import pytest
import yaml

from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.config.differences import changes_of, config_text
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.ext.dual_level.schedule import Exponential

SCHEDULE = {"kind": "exponential", "start": 25, "end_step": 57}
REFRESH = {"every": 10, "density": 0.01, "sample": "all"}
ROWS = {"tables": "*", "forward": {"codec": "topk", "threshold": 1.0}, "backward": "forward_mask"}
DENSE = {"codec": {"codec": "threshold", "threshold": 1.0}, "block": 1}


def config(refresh):
    return config_from_dict(
        {"embedding": [ROWS | {"refresh": refresh}], "dense": DENSE | {"refresh": refresh}}
    )


def test_a_falling_density_survives_yaml():
    made = config(REFRESH | {"schedule": SCHEDULE})
    expected = ThresholdRefresh(
        every=10, density=0.01, sample="all", schedule=Exponential(start=25, end_step=57)
    )
    assert made.dense.refresh == made.embedding[0].refresh == expected
    data = yaml.safe_load(yaml.safe_dump(config_to_dict(made)))
    assert data["dense"]["refresh"]["schedule"] == SCHEDULE
    assert config_from_dict(data) == made


def test_a_constant_density_is_written_as_before():
    """So checkpoints and records of older configs have none of it among their differences."""
    made = config(REFRESH)
    assert config_to_dict(made)["dense"]["refresh"] == REFRESH
    changed = changes_of(config_text(made), config(REFRESH | {"schedule": SCHEDULE}))
    assert changed["dense.refresh.schedule.start"] == "not given -> 25"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 100}, r"schedule\.start: 100\.0 times the density, 0\.01, .* 1 <= start < 100"),
        ({"start": 0.5}, r"schedule\.start: 0\.5 is not a finite number >= 1"),
        ({"end_step": 9}, r"every: 10: the schedule has ended .* allowed: every <= end_step"),
        ({"kind": "cosine"}, r"schedule\.kind: 'cosine' is not one of \('constant', .*exponential"),
        ({"num_stairs": 4}, r"schedule\.num_stairs: unknown key; allowed: start, end_step"),
    ],
)
@pytest.mark.parametrize("place", ["dense", r"embedding\[0\]"])
def test_errors_name_the_field(place, change, message):
    good, bad = REFRESH, REFRESH | {"schedule": SCHEDULE | change}
    data = {
        "embedding": [ROWS | {"refresh": good if place == "dense" else bad}],
        "dense": DENSE | {"refresh": bad if place == "dense" else good},
    }
    with pytest.raises(ValueError, match=rf"{place}\.refresh(\.|: ){message}"):
        config_from_dict(data)


def test_a_schedule_may_end_at_the_second_update():
    end_at_ten = REFRESH | {"schedule": SCHEDULE | {"end_step": 10}}
    assert config(end_at_ten).dense.refresh.density_at(10) == 0.01
    assert config(REFRESH | {"schedule": {"kind": "constant"}}).dense.refresh.density_at(0) == 0.01
