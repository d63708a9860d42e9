"""sparsify_activation against dense autograd with the mask applied by hand."""

import pytest
import torch

from trec_qcomm import ForwardMask, Rowwise, TopK, sparsified_nbytes, sparsify_activation

CODECS = [TopK(density=0.25, values="fp32"), TopK(threshold=0.8, values="fp32")]


def mask_of(values: torch.Tensor, codec: TopK) -> torch.Tensor:
    if codec.threshold is not None:
        return values.abs() >= codec.threshold
    order = values.abs().argsort(dim=-1, descending=True, stable=True)
    kept = order[..., : codec.top_k(values.shape[-1])]
    return torch.zeros_like(values, dtype=torch.bool).scatter(-1, kept, value=True)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 7), (5,), (0, 4)])
def test_it_is_dense_autograd_with_a_mask(codec, shape):
    torch.manual_seed(0)
    before, after = torch.nn.Linear(shape[-1], shape[-1]), torch.nn.Linear(shape[-1], 3)
    inputs = torch.randn(shape)
    gradients = []
    for is_ours in (True, False):
        activation = before(inputs).relu() - 0.3
        if is_ours:
            sparse = sparsify_activation(activation, codec)
        else:
            sparse = activation * mask_of(activation.detach(), codec)
        loss = after(sparse).square().sum()
        parameters = (*before.parameters(), *after.parameters())
        gradients.append((loss, *torch.autograd.grad(loss, parameters)))
    for ours, by_hand in zip(*gradients, strict=True):
        assert torch.equal(ours, by_hand)


def test_values_and_gradients_are_rounded_as_the_codecs_do():
    values = torch.tensor([[1.0, 0.1, -2.0003, 0.2]], requires_grad=True)
    sparse = sparsify_activation(values, TopK(density=0.5), backward=ForwardMask("fp32"))
    assert sparse.tolist() == [[1.0, 0.0, float(torch.tensor(-2.0003).half()), 0.0]]
    sparse.backward(torch.tensor([[0.1, 0.1, 0.3, 0.3]]))
    assert torch.equal(values.grad, torch.tensor([[0.1, 0.0, 0.3, 0.0]]))


def test_rows_that_do_not_lie_side_by_side_are_read_where_they_are():
    wide, codec = torch.randn(4, 16), CODECS[0]
    for part in (wide[:, 3:11], wide.T):
        assert torch.equal(sparsify_activation(part, codec), part * mask_of(part, codec))
        assert sparsified_nbytes(part, codec) == sparsified_nbytes(part.clone(), codec) > 0


def test_a_gradient_of_a_gradient_is_an_error():
    values = torch.randn(2, 8, requires_grad=True)
    loss = sparsify_activation(values, CODECS[0]).square().sum()
    (gradient,) = torch.autograd.grad(loss, values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


def test_bytes_are_those_of_the_encoded_rows():
    """Six of 128 columns in fp16 are 29.7 and 42.7 times smaller than float32."""
    values = torch.randn(1000, 128)
    nbytes = sparsified_nbytes(values, TopK(density=6 / 128))
    assert nbytes == pytest.approx(values.nbytes / 29.7 + values.nbytes / 42.7, rel=0.01)


@pytest.mark.parametrize(
    ("values", "codec", "message"),
    [
        (torch.zeros(2, 4), Rowwise(4), "codec: Rowwise"),
        (torch.zeros(2, 4).double(), CODECS[0], r"got \[2, 4\] torch.float64"),
        (torch.zeros(2, 0), CODECS[0], r"got \[2, 0\] torch.float32"),
        (torch.zeros(()), CODECS[0], r"got \[\] torch.float32"),
    ],
)
def test_what_cannot_be_sparsified_is_refused(values, codec, message):
    with pytest.raises(ValueError, match=message):
        sparsify_activation(values, codec)
