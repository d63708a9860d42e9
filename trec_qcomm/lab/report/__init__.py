"""The command `python -m trec_qcomm report`: draw records of measurements as one page of figures.

runs.py brings the records of trainings into one form. figures/ has a file for each kind of figure.
style.py draws, page.py writes the page, command.py is the command line.

Knows: lab.records; config, to tell that two configs are the same; how the numeric debugger's
records are joined over ranks. Does not know: TorchRec, how anything was measured, options of
measuring programs.
"""
