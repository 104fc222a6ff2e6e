"""`AttentionBackendEnum` and `register_backend`, as the contract describes them, over modulm's registry. No torch."""

import pickle
import subprocess
import sys

import pytest
from vllm.v1.attention.backends import registry as names
from vllm.v1.attention.backends.registry import AttentionBackendEnum, MambaAttentionBackendEnum, register_backend

from modulm.plugins import refs
from modulm.plugins.registry import registry


@pytest.fixture(autouse=True)
def clean():
    """Take back what a test registered."""
    yield
    for backend in list(names._overrides):
        backend.clear_override()
    for backend in list(names._added):
        names._added.discard(backend)
        kind = type(backend)
        del kind._member_map_[backend.name]
        kind._member_names_.remove(backend.name)
        type.__delattr__(kind, backend.name)


def references():
    return registry("modulm.attention").references


def test_members_have_vllms_paths():
    assert AttentionBackendEnum.FLASH_ATTN.get_path() == ("vllm.v1.attention.backends.flash_attn.FlashAttentionBackend")
    assert AttentionBackendEnum["CPU_ATTN"].get_path(include_classname=False) == "vllm.v1.attention.backends.cpu_attn"
    assert MambaAttentionBackendEnum.MAMBA2.get_path().endswith(".mamba2_attn.Mamba2AttentionBackend")
    assert len(AttentionBackendEnum) == 46 and len(MambaAttentionBackendEnum) == 6
    assert len({member.value for member in AttentionBackendEnum}) == 46, "none is an alias"
    assert pickle.loads(pickle.dumps(AttentionBackendEnum.CUSTOM)) is AttentionBackendEnum.CUSTOM
    with pytest.raises(ImportError, match=r"'vllm\.v1\.attention\.backends\.flash_attn' is not here"):
        AttentionBackendEnum.FLASH_ATTN.get_class()


def test_an_unknown_name_is_a_value_error_listing_the_known():
    with pytest.raises(ValueError, match="Unknown attention backend: 'BAD'. Valid options are: FLASH_ATTN, .*, CUSTOM"):
        AttentionBackendEnum["BAD"]


@pytest.mark.parametrize("name", ["CUSTOM", "TORCH_SDPA"])
def test_what_has_no_path_must_be_registered(name):
    with pytest.raises(ValueError, match=f"Backend {name} must be registered before use"):
        AttentionBackendEnum[name].get_path()


@pytest.mark.parametrize("path", ["collections.OrderedDict", "collections:OrderedDict"])
def test_custom_by_path(path):
    import collections

    assert register_backend(AttentionBackendEnum.CUSTOM, path)(int) is int
    assert AttentionBackendEnum.CUSTOM.is_overridden()
    assert AttentionBackendEnum.CUSTOM.get_path() == path
    assert AttentionBackendEnum.CUSTOM.get_class() is collections.OrderedDict
    assert references()["CUSTOM"] == path
    AttentionBackendEnum.CUSTOM.clear_override()
    assert "CUSTOM" not in references() and not AttentionBackendEnum.CUSTOM.is_overridden()


class Outer:
    class Inner:
        """To be found by its qualified name."""


def test_as_a_decorator_it_keeps_the_qualified_name():
    assert register_backend(AttentionBackendEnum.CUSTOM)(Outer.Inner) is Outer.Inner
    assert refs.split(references()["CUSTOM"]) == (__name__, "Outer.Inner")


def test_replacing_one_of_vllms_own_replaces_modulms_of_that_name():
    before = references().get("flash_attn")
    register_backend(AttentionBackendEnum.FLASH_ATTN, "mine.Attention")
    assert references()["flash_attn"] == AttentionBackendEnum.FLASH_ATTN.get_path() == "mine.Attention"
    AttentionBackendEnum.FLASH_ATTN.clear_override()
    assert references().get("flash_attn") == before


def test_new_names_stand_side_by_side():
    register_backend("MINE_A", "mine.A")
    register_backend("MINE_B", "mine.B")
    register_backend("MINE_B", "mine.B")  # as a plugin does again in a forked child
    assert [AttentionBackendEnum["MINE_A"].get_path(), AttentionBackendEnum.MINE_B.get_path()] == ["mine.A", "mine.B"]
    assert (references()["MINE_A"], references()["MINE_B"]) == ("mine.A", "mine.B")
    assert [member.name for member in AttentionBackendEnum][-2:] == ["MINE_A", "MINE_B"]
    with pytest.raises(ValueError, match="'MINE_B' is registered already, as 'mine.B'"):
        register_backend("MINE_B", "mine.C")


@pytest.mark.parametrize("name", ["FLASH_ATTN", "CUSTOM", "register", "get_path", "two words", "", "_hidden", "1ST"])
def test_names_that_cannot_be_new(name):
    with pytest.raises(ValueError, match="cannot be a new attention backend"):
        register_backend(name, "mine.A")


def test_state_space_backends_are_recorded_and_said_to_be_unused(caplog):
    import logging

    logging.getLogger("vllm").addHandler(caplog.handler)
    register_backend(MambaAttentionBackendEnum.MAMBA1, "mine.Mamba", is_mamba=True)
    register_backend("MINE_SSM", "mine.Ssm", is_mamba=True)
    assert MambaAttentionBackendEnum["MINE_SSM"].get_path() == "mine.Ssm"
    assert not {"MAMBA1", "mamba1", "MINE_SSM"} & set(references())
    assert "modulm runs no state-space models: nobody uses it." in caplog.text
    logging.getLogger("vllm").removeHandler(caplog.handler)


def test_registering_imports_no_torch():
    code = """
import sys
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
register_backend(AttentionBackendEnum.CUSTOM, "mine:A")
assert "torch" not in sys.modules and "mine" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
