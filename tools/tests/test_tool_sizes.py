"""`sizes.py` counts what a reader would count, and its limits and exceptions hold."""

import pytest

import sizes

SOURCE = '''"""Doc."""


class A:
    def b(self):
        """Doc."""

        def c():
            return 1

        return c


async def d():
    pass
'''


def of(path, num_lines, functions=()):
    return sizes.Size(path=path, num_lines=num_lines, functions=tuple(functions))


def test_lines_of_file_and_functions():
    size = sizes.measure("packages/core/src/modulm/a.py", SOURCE)
    assert size.num_lines == 15
    assert size.functions == (("A.b", 7), ("A.b.c", 2), ("d", 2))


@pytest.mark.parametrize(
    ("path", "stop"),
    [
        ("packages/core/src/modulm/engine/loop.py", 500),
        ("packages/core/src/modulm/models/llama.py", 600),
        ("packages/core/src/modulm/server/schema.py", 600),
        ("packages/core/tests/null/test_loop.py", 800),
        ("tools/sizes.py", 200),
    ],
)
def test_file_limit(path, stop):
    assert sizes.past_stop([of(path, stop)], {}) == []
    (line,) = sizes.past_stop([of(path, stop + 1)], {})
    assert f"{path}: {stop + 1} lines" in line
    assert sizes.past_stop([of(path, stop + 1)], {path: "why"}) == []


def test_function_limit():
    path = "packages/core/src/modulm/a.py"
    assert sizes.past_stop([of(path, 100, [("A.b", 80)])], {}) == []
    (line,) = sizes.past_stop([of(path, 100, [("A.b", 81)])], {})
    assert f"{path}::A.b: 81 lines, the limit is 80" in line


def test_exceptions_need_a_reason_and_a_use():
    path = "tools/a.py"
    assert sizes.past_stop([of(path, 201)], {path: " "}) == ["tools/a.py: has no reason in tools/sizes.toml"]
    (line,) = sizes.past_stop([of(path, 100)], {path: "why"})
    assert "does not need it" in line


def test_package_limit_leaves_tests_out():
    files = [of(f"packages/quant-x/src/modulm_quant_x/f{i}.py", 500) for i in range(5)]
    tests = [of("packages/quant-x/tests/null/test_x.py", 700)]
    assert sizes.past_stop(files + tests, {}) == []
    (line,) = sizes.past_stop([*files, of("packages/quant-x/src/modulm_quant_x/g.py", 1)], {})
    assert "packages/quant-x: 2501 lines" in line


def test_difference_shows_only_what_differs():
    text = sizes.table(
        [of("tools/a.py", 12), of("tools/b.py", 5)], {"tools/a.py": 10, "tools/b.py": 5, "tools/c.py": 7}
    )
    assert "+2" in text
    assert "-7" in text
    assert "tools/b.py" not in text
