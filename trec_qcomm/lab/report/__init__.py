"""The command `python -m trec_qcomm report`: records of measurements as one page of figures.

runs.py brings the records of trainings into one shape, figures/ holds a file for each kind of
figure, style.py draws, page.py writes the page, __main__.py is the command line.
Knows: lab.records; of the package's rest only config, to tell that two configs are the same,
and how the numeric debugger's records are joined over ranks.
Does not know: TorchRec, how anything was measured, options of who measured.
"""
