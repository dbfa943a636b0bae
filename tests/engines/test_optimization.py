"""The optimizer's half of an update, on parameters that are written out here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relax_core.config import TrainerSection
from relax_core.engines.optimization import Optimization
from relax_core.faults import NotFinite
from relax_core.reductions import Metrics
from relax_core.runtime import LossOutput


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([0.0]))


def refused(make) -> NotFinite:
    """What is said of the loss that `make` gives of both parameters, and that neither has moved."""
    model = Two()
    output = LossOutput(make(model).sum(), torch.tensor(1), Metrics())
    with pytest.raises(NotFinite) as caught:
        Optimization(model, TrainerSection(), 0.1, 1, "here").update([output], 0)
    assert [each.item() for each in model.parameters()] == [3.0, 0.0]
    return caught.value


def test_a_parameter_is_named_by_its_own_gradient_and_not_by_what_clipping_makes_of_it():
    """The derivative of √x at 0 is infinite, and 0 of it is no number, like the norm; that of 2x is 2."""
    error = refused(lambda model: 2 * model.first + 0 * model.second.sqrt())
    assert error.what == "the gradient of step 1 is not finite"
    assert error.parameters == ["second"]


def test_a_norm_that_is_too_large_for_its_type_has_no_parameter():
    """√2 · 3·10³⁸ is above the largest float32, 3.4·10³⁸."""
    assert refused(lambda model: 3e38 * (model.first + model.second)).parameters == []
