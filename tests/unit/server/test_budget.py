"""Which bytes each model may take."""

import pytest

from tmmu.errors import DeviceMemory
from tmmu.server.budget import require_minimum, share_budget
from tmmu.server.settings import load_settings


def test_models_get_their_weights_and_equal_shares_of_the_rest() -> None:
    assert share_budget(1000, [100, 500]) == [300, 700]
    assert share_budget(600, [100, 500]) == [100, 500]
    assert share_budget(None, [100, 500]) == [None, None]
    with pytest.raises(DeviceMemory, match="600 bytes, and the budget is 599"):
        share_budget(599, [100, 500])


def test_server_without_a_budget_begins_with_the_least_or_not_at_all() -> None:
    enormous = 1 << 60
    with pytest.raises(DeviceMemory, match="the least to start with"):
        require_minimum(load_settings({"minimum": enormous}))
    with pytest.raises(DeviceMemory, match="after a reserve"):
        require_minimum(load_settings({"os_reserve": enormous, "minimum": 0}))
    require_minimum(load_settings({"minimum": enormous, "budget": 1}))
    require_minimum(load_settings({"minimum": 0, "os_reserve": 0, "safety_margin": 0}))
