"""The training loop: a step, TorchRec's pipelines, learning rates, signals, a whole training."""
