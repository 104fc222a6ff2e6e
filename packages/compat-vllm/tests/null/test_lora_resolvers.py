"""LoRA resolvers: vLLM's registry is a window into modulm's."""

import asyncio

import pytest
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from modulm.plugins.records import LoadRecord
from modulm.plugins.registry import registry, transaction

FAMILY = "modulm.lora_resolvers"


class Folder(LoRAResolver):
    """Knows one adapter."""

    def __init__(self, path):
        self.path = str(path)

    async def resolve_lora(self, base_model_name, lora_name):
        known = (base_model_name, lora_name) == ("base", "mine")
        return LoRARequest(lora_name=lora_name, lora_int_id=3, lora_path=self.path) if known else None


def resolve(name, base, adapter):
    """Ask as modulm asks: the class in its registry, made without arguments."""
    return asyncio.run(registry(FAMILY).get(name)().resolve_lora(base, adapter))


def test_what_is_registered_is_what_modulm_asks(site, tmp_path):
    LoRAResolverRegistry.register_resolver("My Resolver", mine := Folder(tmp_path))
    assert LoRAResolverRegistry.get_resolver("My Resolver") is mine
    assert list(LoRAResolverRegistry.get_supported_resolvers()) == ["My Resolver"]
    assert resolve("My Resolver", "base", "other") is None and resolve("My Resolver", "other", "mine") is None
    found = resolve("My Resolver", "base", "mine")
    assert (found.name, found.path) == ("mine", str(tmp_path))
    assert resolve("My Resolver", "base", "mine").key == found.key
    (tmp_path / "adapter_model.safetensors").write_bytes(b"new")
    assert resolve("My Resolver", "base", "mine").key != found.key


def test_a_second_one_of_a_name_replaces_the_first_with_a_warning(site, tmp_path, caplog):
    LoRAResolverRegistry.register_resolver("x", Folder(tmp_path))
    assert "registered already" not in caplog.text
    LoRAResolverRegistry.register_resolver("x", second := Folder(tmp_path / "second"))
    assert LoRAResolverRegistry.get_resolver("x") is second and "'x' is registered already" in caplog.text


def test_an_unknown_name(site, tmp_path):
    LoRAResolverRegistry.register_resolver("x", Folder(tmp_path))
    with pytest.raises(KeyError, match="named 'y' was not found. Available resolvers: x"):
        LoRAResolverRegistry.get_resolver("y")


def test_what_a_failing_plugin_registered_goes(site, tmp_path):
    record = LoadRecord(group="vllm.general_plugins", name="p", value="m:f", distribution="d", version="1")

    def register():
        LoRAResolverRegistry.register_resolver("x", Folder(tmp_path))
        raise OSError("half-way")

    with pytest.raises(OSError, match="half-way"), transaction(record):
        register()
    assert not LoRAResolverRegistry.get_supported_resolvers() and "x" not in registry(FAMILY)


def test_what_is_no_resolver_is_refused(site):
    with pytest.raises(TypeError, match="must be an object whose class derives from vllm.lora.resolver"):
        LoRAResolverRegistry.register_resolver("x", Folder)


def test_requests_are_the_same_by_name_and_count_from_one():
    assert LoRARequest("a", 1, "/x") == LoRARequest("a", 2, "/y") != LoRARequest("b", 1, "/x")
    assert len({LoRARequest("a", 1), LoRARequest("a", 2)}) == 1
    with pytest.raises(ValueError, match="id must be > 0"):
        LoRARequest("a", 0)
