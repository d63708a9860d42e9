"""search.py of Criteo: what it hands to trec_qcomm.search, and what it refuses before training."""

import pytest
from studies import search as criteo_search

from trec_qcomm.lab.search.command import main


def test_the_model_comes_with_its_tables_and_setup():
    given = criteo_search.criteo(["--rows", "256", "--ranks", "2", "--embedding-dim", "8"])
    assert len(given["dims"]) == 26
    assert set(given["dims"].values()) == {8}
    assert given["num_ranks"] == 2
    assert given["setup"]["rows"] == 256
    assert given["base"] == "best"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pipeline", "sparse_dist"], "an option that accuracy.py does not have"),
        (["--codecs", "codecs.yaml"], "candidates.forward[1]: Fbgemm"),
    ],
)
def test_mistakes_are_told_before_any_training(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "codecs.yaml").write_text("forward: [{codec: fbgemm, precision: int2}]\n")
    with pytest.raises(SystemExit) as error:
        main([*words, "--embedding-dim", "4"], make=criteo_search.criteo)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
