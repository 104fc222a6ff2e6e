"""Old names of modules that have moved; the table in use is empty, so the tests bring one."""

import importlib
import subprocess
import sys
from importlib.metadata import version

import pytest

from modulm.moved import MOVED, Finder, Moved


def numbers(text):
    return tuple(int(part) for part in text.split(".")[:2])


def test_no_entry_has_outlived_its_time():
    now = numbers(version("modulm-core"))
    assert [old for old, moved in MOVED.items() if numbers(moved.until) <= now] == [], "remove them from MOVED"


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A package `new_place` with a module and a subpackage, and its old name `old_place`; `old_loose` is one module."""
    (tmp_path / "new_place/inner").mkdir(parents=True)
    (tmp_path / "new_place/__init__.py").write_text("count = 0\n")
    (tmp_path / "new_place/part.py").write_text("from new_place import inner\nclass Thing: ...\n")
    (tmp_path / "new_place/inner/__init__.py").write_text("")
    (tmp_path / "new_place/inner/deep.py").write_text("class Deep: ...\n")
    table = {"old_place": Moved("new_place", "9.9"), "old_loose": Moved("new_place.part", "9.8")}
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder(table), *sys.meta_path])
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith(("new_place", "old_place", "old_loose"))]:
        del sys.modules[name]


def test_an_old_name_leads_to_the_module_itself(moved):
    with pytest.warns(DeprecationWarning, match="old_loose") as warned:
        import old_loose
    import new_place.part

    assert old_loose is new_place.part and new_place.part.__spec__.name == "new_place.part"
    (warning,) = warned
    assert str(warning.message) == (
        "Module 'old_loose' is now 'new_place.part'; the old name ends with modulm-core 9.8. Import the new one."
    )
    assert warning.filename == __file__, "it points at who imports"


@pytest.mark.filterwarnings("ignore:Module 'old_place")
def test_what_is_below_a_moved_package_is_not_loaded_twice(moved):
    with pytest.warns(DeprecationWarning, match="'old_place.inner.deep' is now 'new_place.inner.deep'"):
        from old_place.inner.deep import Deep
    from new_place.inner import deep

    assert Deep is deep.Deep


def test_a_missing_module_below_is_named_by_its_new_name(moved):
    with (
        pytest.warns(DeprecationWarning, match="old_place"),
        pytest.raises(ModuleNotFoundError, match="No module named 'new_place.gone'"),
    ):
        importlib.import_module("old_place.gone")


def test_other_names_are_not_looked_at(moved):
    for name in ("old_placebo", "old", "new_place"):
        assert Finder({"old_place": Moved("new_place", "9.9")}).find_spec(name) is None


def test_it_is_there_as_soon_as_modulm_is_imported():
    code = (
        "import warnings, sys\nwarnings.simplefilter('ignore')\n"
        "import modulm.moved as m\nassert not any(isinstance(f, m.Finder) for f in sys.meta_path)\n"
        "m.MOVED['modulm.interfaces.old'] = m.Moved('modulm.interfaces.lora', '9.9')\n"
        "sys.modules.pop('modulm')\nimport modulm\n"
        "from modulm.interfaces.old import LoRAResolver\nimport modulm.interfaces.lora as new\n"
        "assert LoRAResolver is new.LoRAResolver\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
