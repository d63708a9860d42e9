"""Price codecs in TorchRec's planner, by measured rows if there are any.

estimator.py is the planner's estimator, measured.py has prices by measured rows, traffic.py is the
model of bytes, cost_model.py the model of seconds.
"""
