"""examples/emulate.py: two towers learn on played ranks, with codecs nearly as in float32."""

from math import log

from examples import emulate


def test_the_page_learns_with_and_without_codecs(capsys):
    exact, coded = (emulate.train(config, 20) for config in ("fp32", "best"))
    assert max(exact, coded) < 0.8 * log(2)  # log 2: nothing learned
    assert exact != coded
    shown = capsys.readouterr().out
    assert "fp32, row_wise: loss" in shown
    assert shown.count("Sent by this rank to others, a step, 20 steps") == 2
