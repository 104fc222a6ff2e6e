"""Ctrl-C waits for the end of `held`, passes in `released`, and is never lost."""

import signal
import threading

import pytest

from modulm.interrupts import held, let_through, released


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


def held_inside_a_released_part(after):
    with held(), released():
        with held():
            press()
            after.append("held")
        after.append("released")


def let_through_between_steps(after):
    with held():
        let_through()
        after.append("nothing")
        press()
        let_through()
        after.append("not reached")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [(held_inside_a_released_part, ["held"]), (let_through_between_steps, ["nothing"])],
    ids=["a held part inside a released one", "between steps"],
)
def test_it_comes_at_the_first_place_that_lets_it_through(calls, expected):
    after = []
    with pytest.raises(KeyboardInterrupt):
        calls(after)
    assert after == expected


def test_another_thread_changes_nothing():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        press_while_another_thread_is_released(reached)
    assert reached == ["held"]


def press_while_another_thread_is_released(reached):
    inside, pressed = threading.Event(), threading.Event()

    def be_released():
        with released():
            inside.set()
            pressed.wait(10)

    with held():
        thread = threading.Thread(target=be_released)
        thread.start()
        inside.wait(10)
        press()
        reached.append("held")
        pressed.set()
        thread.join()


def test_it_does_nothing_where_there_is_nothing_to_hold():
    with released(), held(), released():
        pass
    thread = threading.Thread(target=hold, args=([],), kwargs={"presses": 0})
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, before := signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert callable(before)
