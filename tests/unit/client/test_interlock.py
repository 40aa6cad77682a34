import pytest

from tmmu.client.interlock import host_free_bytes, require_local_room
from tmmu.errors import DeviceMemory


def test_half_as_much_again_is_asked_for_and_no_byte_less() -> None:
    for planned, needed in ((0, 0), (1, 2), (1000, 1500), (1001, 1502)):
        require_local_room(planned, lambda needed=needed: needed, fix="")
        if needed:
            with pytest.raises(DeviceMemory) as error:
                require_local_room(planned, lambda needed=needed: needed - 1, fix="wait")
            assert error.value.fields == {"planned": planned, "needed": needed, "free": needed - 1}


def test_this_machine_has_some() -> None:
    assert host_free_bytes() > 0
