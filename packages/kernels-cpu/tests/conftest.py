"""Arrays as files may hold them and native code may not read them."""

import numpy as np
import pytest


@pytest.fixture
def at_odd_address():
    """Return what copies an array to an address that no type of several bytes is aligned to."""

    def copy(array):
        room = np.empty(array.nbytes + 1, np.uint8)
        room[1:] = array.reshape(-1).view(np.uint8)
        return room[1:].view(array.dtype).reshape(array.shape)

    return copy
