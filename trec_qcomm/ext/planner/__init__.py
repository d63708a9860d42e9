"""TorchRec's planner with prices of codecs: estimator.py. What rows say of prices: measured.py.

traffic/ is the model of bytes, cost_model.py that of seconds.
"""
