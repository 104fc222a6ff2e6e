"""The examples of docs/extend keep every promise of their contracts: the suites that authors run."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from modulm.interfaces.parsers import Parsed, ParsedCall
from modulm_testkit.checkpoint import CheckpointConformance
from modulm_testkit.checkpoints import random_llama, write_tokenizer
from modulm_testkit.endpoint import EndpointConformance
from modulm_testkit.executor import ExecutorConformance
from modulm_testkit.general import GeneralPluginConformance
from modulm_testkit.io_processor import IOProcessorConformance
from modulm_testkit.kernels import KernelConformance
from modulm_testkit.logits import LogitsProcessorConformance
from modulm_testkit.lora import LoRAResolverConformance
from modulm_testkit.parsers import ReasoningParserConformance, ToolParserConformance
from modulm_testkit.platform import PlatformConformance
from modulm_testkit.samples import CheckpointSample
from modulm_testkit.speculator import SpeculatorConformance

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def your_package(tmp_path_factory):
    """The examples under the name that they have for themselves, on this process's path and its children's."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "your_package").symlink_to(ROOT / "docs/extend/examples")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def example(name):
    return importlib.import_module(f"your_package.{name}")


class TestCheckpoint(CheckpointConformance):
    @pytest.fixture
    def checkpoint(self, tmp_path):
        config, tensors = random_llama()
        write_tokenizer(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        np.savez(tmp_path / "model.npz", **tensors)
        return CheckpointSample(
            reader=example("checkpoint").NumpyCheckpoint, path=tmp_path, config=config, tensors=tensors
        )


class TestEndpoint(EndpointConformance):
    @pytest.fixture
    def plugin(self):
        return example("endpoint").Queue


class TestExecutor(ExecutorConformance):
    @pytest.fixture
    def executor_class(self):
        return example("executor").TimedExecutor


class TestGeneral(GeneralPluginConformance):
    @pytest.fixture
    def register(self):
        return example("general").register


class TestIOProcessor(IOProcessorConformance):
    data = [{"temperatures": [21, 23.5]}]
    bad_data = [None, {}, {"temperatures": ["warm"]}]

    @pytest.fixture
    def processor_class(self):
        return example("io_processor").Temperatures


class TestKernels(KernelConformance):
    @pytest.fixture
    def provider(self):
        return example("kernels").Float64Kernels


class TestLogits(LogitsProcessorConformance):
    params = [{"extra_args": {"forbid": [1, 2]}}, {}]
    bad_params = [{"extra_args": {"forbid": "all"}}]

    @pytest.fixture
    def processor_class(self):
        return example("logits").Forbid


class TestLoRA(LoRAResolverConformance):
    adapters = ["mine"]

    @pytest.fixture
    def resolver(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "adapters/mine"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        return example("lora").Folders()


class TestToolParser(ToolParserConformance):
    samples = [
        ('So: <call>add {"a": 1}</call>', Parsed(content="So: ", calls=[ParsedCall("add", '{"a": 1}')])),
    ]

    @pytest.fixture
    def parser_class(self):
        return example("parsers").Marked


class TestReasoningParser(ReasoningParserConformance):
    samples = [("<think>Two?</think>Two.", Parsed(content="Two.", reasoning="Two?"))]

    @pytest.fixture
    def parser_class(self):
        return example("parsers").Tagged


class TestPlatform(PlatformConformance):
    @pytest.fixture
    def platform_class(self):
        return example("platform").LimitedCPU


class TestSpeculator(SpeculatorConformance):
    settings = ({}, {"skip": 3})
    bad_settings = ({"skip": -1},)

    @pytest.fixture
    def speculator_class(self):
        return example("speculator").Echo
