"""The command `python -m trec_qcomm.report`: records of measurements as one page of figures.

records.py reads JSON lines and says what each is, runs.py brings those of trainings into one shape,
figures/ holds a file a kind of picture, style.py draws, page.py writes the page, __main__.py is the
command line. Knows: JSON lines; of the package only config, to tell that two configs are the same.
Does not know: torch, TorchRec, how anything was measured.
"""
