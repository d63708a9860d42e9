"""The command `python -m trec_qcomm simulate`: what a training step takes on networks we lack.

measured.py reads what was measured on emulated networks. validation.py predicts one of those
networks from another, by a formula of its own. links.py, plans.py and step.py are the model of a
step on up to thousands of GPUs, of which the validation tests bytes and overlap only. report.py
writes tables and records, __main__.py is the command line.
Knows: records, config, control.cost_model. Does not know: TorchRec, process groups, any GPU.
"""
