"""The command `python -m trec_qcomm simulate`: predict a training step on networks that we lack.

measured.py reads measurements on emulated networks. validation.py predicts one of those networks
from another, by its own formula. plans.py and step.py are the model of a step on up to thousands of
GPUs; the validation tests only its bytes and overlap. ratios.py has the ratios of a configuration,
measured or by sizes of tables. report.py writes tables, command.py is the command line.
Knows: records, config, ext.planner's cost model. Does not know: TorchRec, process groups, any GPU.
"""
