"""What stands for the examples' classes in modulm keeps modulm's contracts: the testkit's suites, run on it."""

import importlib

import pytest
from vllm.utils.import_utils import resolve_obj_by_qualname

from modulm.plugins.families import PLATFORM, STAT_LOGGER, check
from modulm.plugins.registry import registry
from modulm_testkit.lora import LoRAResolverConformance
from modulm_testkit.model import ModelConformance
from modulm_testkit.platform import PlatformConformance
from modulm_testkit.stat_logger import StatLoggerConformance


@pytest.fixture(autouse=True)
def example(request, monkeypatch, examples):
    """Make an example importable."""
    for folder in request.cls.folders:
        monkeypatch.syspath_prepend(str(examples / folder))
    importlib.invalidate_caches()


@pytest.mark.conformance_xfail(
    "test_respects_what_the_user_said", reason="the example sets the block size, whatever the user says"
)
class TestPlatform(PlatformConformance):
    folders = ("platform", "custom_attention")

    @pytest.fixture
    def platform_class(self):
        return check(PLATFORM, "The example", resolve_obj_by_qualname("my_platform.platform.MyPlatform"))


class TestModel(ModelConformance):
    folders = ("custom_llama",)

    @pytest.fixture
    def model_class(self):
        return check("modulm.models", "The example", resolve_obj_by_qualname("custom_llama.model.MyCustomLlama"))


class TestStatLogger(StatLoggerConformance):
    folders = ("stat_logger",)

    @pytest.fixture(params=["requests.RequestLogger", "tokens.TokenLogger"])
    def logger_class(self, request):
        return check(STAT_LOGGER, "The example", resolve_obj_by_qualname(f"my_stat_loggers.{request.param}"))


class TestResolver(LoRAResolverConformance):
    folders = ("lora_and_parsers",)
    adapters = ("mine", "yours")

    @pytest.fixture
    def resolver(self, monkeypatch, tmp_path, clean_registries):
        for name in self.adapters:
            (tmp_path / "adapters" / name).mkdir(parents=True)
            (tmp_path / "adapters" / name / "adapter_config.json").write_text("{}")
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret/adapter_config.json").write_text("{}")
        monkeypatch.setenv("MY_LORA_FOLDER", str(tmp_path / "adapters"))
        resolve_obj_by_qualname("my_parsers.register")()
        return registry("modulm.lora_resolvers").get("My Folder")()
