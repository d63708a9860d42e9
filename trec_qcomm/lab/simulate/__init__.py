"""The command `python -m trec_qcomm simulate`: what a training step takes on networks we lack.

measured.py reads what was measured on emulated networks. validation.py predicts one of those
networks from another, by a formula of its own. plans.py and step.py are the model of a step on up
to thousands of GPUs, of which the validation tests bytes and overlap only; ratios.py has the ratios
of a configuration, measured or by sizes of tables. report.py writes tables, command.py is the
command line.
Knows: records, config, ext.planner's cost model. Does not know: TorchRec, process groups, any GPU.
"""
