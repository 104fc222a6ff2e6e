"""Ctrl-C waits for the end of `held`, passes in `released`, and is never lost."""

import signal
import threading

import pytest

from modulm.interrupts import held, released


@pytest.fixture(autouse=True)
def handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def press():
    signal.raise_signal(signal.SIGINT)


def hold(reached, *, released=False, presses=1):
    with held(), held():  # the inner one leaves it to the outer one
        for _ in range(presses):
            press()
        reached.append("held")
        if released:
            with released():
                reached.append("released")
        reached.append("end")


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, ["held", "end"]), ({"released": True}, ["held"]), ({"presses": 2}, [])],
    ids=["until the end", "until it is let through", "the second is not held"],
)
def test_it_is_held(options, expected):
    reached = []
    with pytest.raises(KeyboardInterrupt):
        hold(reached, **options)
    assert reached == expected


def released_press(after):
    with held():
        try:
            with released():
                press()
        finally:
            press()  # held again
            after.append("held")


def test_a_released_part_is_broken_off_at_once():
    after = []
    with pytest.raises(KeyboardInterrupt):
        released_press(after)
    assert after == ["held"]


def test_it_does_nothing_where_there_is_nothing_to_hold():
    with released(), held(), released():
        pass
    thread = threading.Thread(target=hold, args=([],), kwargs={"presses": 0})
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, before := signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert callable(before)
