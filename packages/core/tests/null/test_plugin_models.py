import sys
import types

import pytest

from modulm.errors import Broken, NotInstalled, UnknownName
from modulm.plugins import known
from modulm.plugins.models import ModelRegistry


class Module:
    """Stands for torch.nn.Module in a process without torch."""


NET = """
class Net:
    def __init__(self, config): ...
    def forward(self, token_ids, batch): ...
    def compute_logits(self, hidden): ...
"""


class Net(Module):
    def __init__(self, config):
        """Stand-in."""

    def forward(self, token_ids, batch):
        """Stand-in."""

    def compute_logits(self, hidden):
        """Stand-in."""


@pytest.fixture
def torch(monkeypatch):
    fake = types.ModuleType("torch")
    fake.nn = types.SimpleNamespace(Module=Module)
    monkeypatch.setitem(sys.modules, "torch", fake)


def test_a_string_imports_nothing_until_it_is_resolved(site):
    site.install("dist-a", oot_model=NET)
    ModelRegistry.register_model("MyForCausalLM", "oot_model:Net")
    assert "oot_model" not in sys.modules
    assert ModelRegistry.get_supported_archs() == {"BuiltInForCausalLM", "MyForCausalLM"}
    cls, arch = ModelRegistry.resolve_model_cls(["Unknown", "MyForCausalLM"])
    assert (cls.__name__, arch) == ("Net", "MyForCausalLM")
    assert ModelRegistry.resolve_model_cls("BuiltInForCausalLM", None)[1] == "BuiltInForCausalLM"


@pytest.mark.parametrize("reference", ["no_colon.Class", "a:b:c", "", ":", "m:", ":C"])
def test_a_string_needs_exactly_one_colon(site, reference):
    with pytest.raises(ValueError, match="format '<module>:<class>'"):
        ModelRegistry.register_model("X", reference)


@pytest.mark.parametrize("cls", [int, object(), Net])
def test_without_torch_nothing_is_a_module(site, cls, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TypeError, match=r"derives from torch\.nn\.Module"):
        ModelRegistry.register_model("X", cls)


def test_a_class_must_be_a_module(site, torch):
    with pytest.raises(TypeError, match=r"derives from torch\.nn\.Module"):
        ModelRegistry.register_model("X", int)
    ModelRegistry.register_model("X", Net)
    assert ModelRegistry.resolve_model_cls(["X"]) == (Net, "X")


def test_the_architecture_must_be_a_string(site):
    with pytest.raises(TypeError, match="must be a string"):
        ModelRegistry.register_model(3, "m:C")


def test_registering_again_replaces_and_is_logged(site, torch, caplog):
    caplog.set_level("INFO", "modulm")
    ModelRegistry.register_model("X", "m:C")
    ModelRegistry.register_model("X", Net)
    ModelRegistry.register_model("BuiltInForCausalLM", Net)
    assert ModelRegistry.resolve_model_cls(["X"])[0] is Net
    assert "'X' of this program is overridden" in caplog.text
    assert "'BuiltInForCausalLM' of modulm-core (built in) is overridden" in caplog.text


def test_none_is_supported(site, monkeypatch):
    with pytest.raises(UnknownName, match="are not supported for now. Supported architectures: BuiltInForCausalLM"):
        ModelRegistry.resolve_model_cls(["BuiltinForCausalLM", "Other"])
    monkeypatch.setitem(known.KNOWN, "modulm.models", {"Known": "modulm-models-known"})
    with pytest.raises(NotInstalled, match="pip install modulm-models-known"):
        ModelRegistry.resolve_model_cls(["Known"])


def test_a_broken_one_is_reported_unless_another_serves(site):
    ModelRegistry.register_model("Bad", "no_such_module:C")
    with pytest.raises(Broken, match="no_such_module"):
        ModelRegistry.resolve_model_cls(["Unknown", "Bad"])
    assert ModelRegistry.resolve_model_cls(["Bad", "BuiltInForCausalLM"])[1] == "BuiltInForCausalLM"
