"""Names, types, labels and buckets against vLLM's tables; the README says of every one whether it is exported."""

import json
import re

import pytest

from modulm.interfaces.metrics import LoggedCache

OURS = "modulm:plugin_load_seconds"


@pytest.fixture
def rows(folder):
    """The README's table: name -> (exported, the rest)."""
    found = re.findall(r"^\| `(\w+:\w+)` \| (yes|no) \|(.*)\|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(found) == len({name for name, _, _ in found})
    return {name: (answer == "yes", rest.strip()) for name, answer, rest in found}


@pytest.fixture
def exported(full):
    """Name as constructed -> (type, label names, bucket bounds)."""
    found = {}
    for family in full.registry.collect():
        labels, bounds = {}, []
        for sample in family.samples:
            labels |= dict.fromkeys(key for key in sample.labels if key != "le")
            if sample.name.endswith("_bucket") and float(sample.labels["le"]) not in bounds:
                bounds.append(float(sample.labels["le"]))
        found[family.name] = (family.type, tuple(labels), bounds)
    return found


def test_the_readme_has_every_metric_of_the_contract_and_a_reason_for_each_that_is_left_out(rows, contract):
    assert list(rows) == [*(metric["name"] for metric in contract["metrics"]), OURS]
    assert [name for name, (is_exported, rest) in rows.items() if not is_exported and not rest] == []


def test_what_is_exported_is_what_the_readme_says(rows, exported):
    assert set(exported) == {name for name, (is_exported, _) in rows.items() if is_exported}


def test_types_labels_and_buckets_are_the_contracts(exported, contract):
    for metric in contract["metrics"]:
        name = metric["name"]
        if name not in exported:
            continue
        kind, labels, bounds = exported[name]
        assert (name, kind) == (name, metric["type"])
        if name == "vllm:cache_config_info":
            assert set(labels) == {*LoggedCache.__dataclass_fields__, "engine"}
            continue
        assert (name, labels) == (name, tuple(metric["labels"]))
        if kind == "histogram":
            family = contract["buckets"][metric["buckets"]]
            expected = family["512"] if isinstance(family, dict) else family
            assert (name, bounds) == (name, [*expected, float("inf")])


@pytest.mark.parametrize("length", ["1", "131072"])
def test_buckets_of_token_counts_go_as_far_as_the_model(make_logger, contract, length):
    registry = make_logger(int(length)).registry
    (family,) = [each for each in registry.collect() if each.name == "vllm:request_prompt_tokens"]
    bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
    assert bounds == [*contract["buckets"]["request_tokens"][length], float("inf")]


def test_every_metric_on_the_dashboard_exists(full, folder):
    dashboard = json.loads((folder / "grafana/modulm.json").read_text())
    samples = {sample.name: sample.labels for family in full.registry.collect() for sample in family.samples}
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"] for each in dashboard["templating"]["list"]]
    names = {name for text in asked for name in re.findall(r"\b(?:vllm|modulm):\w+", text)}
    assert len(names) > 20 and names <= set(samples)
    for text in asked:  # every label that is matched or grouped by, on the metrics beside it
        for name, matchers in re.findall(r"((?:vllm|modulm):\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=~", matchers)) <= set(samples[name])
        for label, name in re.findall(r"by \((\w+)\) ?\((?:rate\()?((?:vllm|modulm):\w+)", text):
            assert label in samples[name]
