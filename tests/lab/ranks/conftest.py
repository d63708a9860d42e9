import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Compute with as many threads as real ranks of tests do: their number changes last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
