"""examples/emulate.py: two towers learn on played ranks, with codecs nearly as in float32."""

from math import log

from examples import emulate

COARSE = {
    "embedding": [
        {
            "tables": "*",
            "forward": {"codec": "rowwise", "bits": 2},
            "backward": {"codec": "topk", "density": 0.02},
        }
    ]
}


def test_the_page_learns_with_and_without_codecs_and_tells_coarse_ones(capsys):
    exact, coded, coarse = (emulate.train(config, 30) for config in ("fp32", "best", COARSE))
    assert max(exact, coded) < 0.8 * log(2)  # log 2: nothing learned
    assert min(exact, coded) > 0.1  # clicks are chance: nobody gets to 0
    assert exact != coded
    assert coarse - exact > 5 * abs(coded - exact)
    shown = capsys.readouterr().out
    assert "fp32, row_wise: loss" in shown
    assert shown.count("Sent by this rank to others, a step, 30 steps") == 3
