"""Whole numbers."""


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(a // -b)


def round_up(x: int, y: int) -> int:
    """Return the first multiple of y from x on."""
    return cdiv(x, y) * y


def round_down(x: int, y: int) -> int:
    """Return the last multiple of y up to x."""
    return x // y * y


def next_power_of_2(n: int) -> int:
    """Return the first power of 2 from n on; 1 for less."""
    return 1 if n < 1 else 1 << (n - 1).bit_length()


def prev_power_of_2(n: int) -> int:
    """Return the last power of 2 up to n; 0 where there is none."""
    return 0 if n <= 0 else 1 << (n.bit_length() - 1)
