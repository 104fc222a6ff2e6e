import pytest

from modulm.errors import Broken, Incompatible, NotInstalled, UnknownName, Unsupported
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins import builtin, families, known
from modulm.plugins.choose import choose
from modulm.plugins.registry import registry

FAMILY = "modulm.speculators"  # unchecked here, so that plain objects will do
NAMES = ["fast", "broken", "missing", "good", "slow"]


@pytest.fixture(autouse=True)
def parsers(site, monkeypatch):
    monkeypatch.delitem(families._BASES, FAMILY)
    monkeypatch.setitem(builtin.BUILTIN, FAMILY, {})
    monkeypatch.setitem(known.KNOWN, FAMILY, {"missing": "modulm-missing"})
    registered = registry(FAMILY)
    registered.register("fast", Rejected("head size 320 is above its limit of 256"))
    registered.register("broken", "no_such_module:X")
    registered.register("good", Accepted("of its own accord"))
    registered.register("slow", Accepted())


def ask(found):
    return found


@pytest.mark.parametrize("asked", [None, "auto"])
def test_automatic_takes_the_first_that_accepts(asked, caplog):
    caplog.set_level("INFO", "modulm")
    choice = choose(FAMILY, asked, NAMES, ask)
    assert (choice.name, choice.value) == ("good", Accepted("of its own accord"))
    assert [name for name, _ in choice.trace] == NAMES[:4]
    answers = dict(choice.trace)
    assert answers["fast"].reason == "head size 320 is above its limit of 256"
    assert answers["missing"] == Rejected("not installed")
    assert "No module named 'no_such_module'" in answers["broken"].reason
    choose(FAMILY, asked, NAMES, ask)
    chosen = [r for r in caplog.records if r.getMessage().startswith("Chosen")]
    warned = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(chosen) == len(warned) == 1, "each is said once"
    assert "\n" not in str(choice)


def test_one_line():
    line = str(choose(FAMILY, None, ["fast", "good"], ask))
    assert line == "modulm.speculators=good (of its own accord; not fast: head size 320 is above its limit of 256)"
    assert str(choose(FAMILY, "slow", [], ask)) == "modulm.speculators=slow (asked for)"


def test_capitals_do_not_matter_where_the_name_is_not_there_as_written():
    assert choose(FAMILY, "GOOD", NAMES, ask).name == "good"
    registry(FAMILY).register("Good", Accepted("the other one"))
    assert choose(FAMILY, "Good", NAMES, ask).value == Accepted("the other one")
    with pytest.raises(UnknownName, match="'GREAT' is unknown"):
        choose(FAMILY, "GREAT", NAMES, ask)


def test_an_explicit_name_is_used_even_if_it_is_no_candidate():
    assert choose(FAMILY, "slow", ["good"], ask).name == "slow"


def test_an_explicit_name_that_refuses_stops_the_run():
    with pytest.raises(Unsupported, match="Accepted instead: good, slow") as caught:
        choose(FAMILY, "fast", NAMES, ask)
    assert "head size 320" in str(caught.value)
    with pytest.raises(Unsupported, match="Accepted instead: none"):
        choose(FAMILY, "fast", ["fast"], ask)


@pytest.mark.parametrize(("asked", "error"), [("broken", Broken), ("missing", NotInstalled), ("nothing", UnknownName)])
def test_an_explicit_name_that_cannot_be_had(asked, error):
    with pytest.raises(error):
        choose(FAMILY, asked, NAMES, ask)


def test_strict_refuses_a_broken_candidate_but_not_a_missing_one(monkeypatch):
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Broken):
        choose(FAMILY, None, ["broken", "good"], ask)
    assert choose(FAMILY, None, ["missing", "good"], ask).name == "good"


def test_nothing_accepts():
    with pytest.raises(Unsupported, match="fast: head size 320 is above its limit of 256; missing: not installed"):
        choose(FAMILY, None, ["fast", "missing"], ask)
    with pytest.raises(Unsupported, match="none is installed"):
        choose(FAMILY, None, [], ask)


def test_a_question_that_raises_counts_as_broken():
    def raising(found):
        if found == Accepted():
            raise ZeroDivisionError("in supports")
        return found

    with pytest.raises(Broken, match="asking whether it can serve raised ZeroDivisionError: in supports"):
        choose(FAMILY, "slow", [], raising)
    assert choose(FAMILY, None, ["slow", "good"], raising).name == "good"


def test_a_candidate_of_the_wrong_type(site):
    registry("modulm.executors").register("bad", object)
    registry("modulm.executors").register("bad2", "site_builtin:Model")
    with pytest.raises(Incompatible):
        choose("modulm.executors", "bad", [], ask)
    with pytest.raises(Unsupported, match="must be a class that derives"):
        choose("modulm.executors", None, ["bad", "bad2"], ask)


def test_turned_off_candidates_say_so(site, monkeypatch):
    site.install("dist-a", {FAMILY: {"off": "m:X"}})
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    site.forget()
    with pytest.raises(Unsupported, match="VLLM_PLUGINS='other' does not name it"):
        choose(FAMILY, None, ["off"], ask)
