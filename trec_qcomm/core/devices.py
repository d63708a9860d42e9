"""Tell GPUs from CPUs. The host does not read a GPU's memory, and does not wait for a GPU.

Knows: torch devices. Does not know: kernels, streams.
"""

import torch

# A test adds "meta". So tensors without memory play a GPU's, and what a GPU would do is counted
# without one; a read by the host, or an operation on both memories, raises.
GPU_TYPES = {"cuda"}


def is_gpu(device: torch.device) -> bool:
    """Return whether tensors on the device lie in a GPU's memory."""
    return device.type in GPU_TYPES
