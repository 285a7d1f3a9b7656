"""Vector growth against its geometric series and against a vector that is filled, deep copies against copy itself."""

import array
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import copying


@pytest.mark.parametrize("power", range(12))
def test_doubling_relocates_one_less_than_its_elements(power):
    found = copying.grown_vector(num_elements=2**power)
    assert found == {"relocations": 2**power - 1, "growths": power, "capacity": 2**power}


@given(n=st.integers(0, 3000), factor=st.sampled_from([1.01, 1.5, 2.0, 3.0]), first=st.integers(1, 40))
def test_growth_is_what_a_filled_vector_does(n, factor, first):
    """Appends one by one and moves every element that is there when the room runs out."""
    room, moved, growths = first, 0, 0
    for size in range(n):
        if size == room:
            moved, growths, room = moved + size, growths + 1, max(room + 1, int(room * factor))
    assert copying.grown_vector(num_elements=n, factor=factor, first_capacity=first) == {
        "relocations": moved, "growths": growths, "capacity": room}


@given(n=st.integers(0, 1000), code=st.sampled_from("bhid"))
def test_a_deep_copy_is_as_large_as_its_original(n, code):
    original = array.array(code, [1] * n)
    found = copying.deep_copy_bytes(num_elements=n, bytes_per_element=original.itemsize)
    assert found["bytes"] == len(copy.deepcopy(original).tobytes())
    assert found["traffic_bytes"] == len(original.tobytes()) + found["bytes"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: copying.grown_vector(num_elements=-1), "num_elements=-1"),
        (lambda: copying.grown_vector(num_elements=10**8), "num_elements=100000000: expected at most"),
        (lambda: copying.grown_vector(num_elements=4, factor=1), "factor=1"),
        (lambda: copying.grown_vector(num_elements=4, first_capacity=0), "first_capacity=0"),
        (lambda: copying.deep_copy_bytes(num_elements=-3, bytes_per_element=2), "num_elements=-3"),
        (lambda: copying.deep_copy_bytes(num_elements=1, bytes_per_element=-2), "bytes_per_element=-2"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
