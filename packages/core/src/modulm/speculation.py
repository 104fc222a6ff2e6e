"""From `speculative_config` to a speculator: which method, how many tokens, with which settings.

Keys and methods are vLLM's. Knows no method: what can be set beside the common keys is the speculator's to say, and
what is not installed, `plugins/known.py`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from modulm.config import EngineConfig
from modulm.errors import ConfigError, PluginError, did_you_mean
from modulm.interfaces.settings import plugin_settings, setting_names
from modulm.interfaces.speculator import Speculator, SpeculatorLimits
from modulm.interfaces.support import Accepted
from modulm.plugins import loading, refs
from modulm.plugins.choose import Choice, choose, record_of, run
from modulm.plugins.families import NOUNS, check
from modulm.plugins.registry import registry

FAMILY = "modulm.speculators"
_COMMON = ("method", "model", "num_speculative_tokens")
_MOST_TOKENS = 128
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+([.:][A-Za-z_]\w*)?")
_WITH_A_MODEL = "it needs a second model beside the first, and speculators get none yet"
_WITH_STATES = "it needs the model's hidden states, and speculators do not get them yet"
_REFUSED = {
    **dict.fromkeys(("draft_model", "mlp_speculator"), _WITH_A_MODEL),
    **dict.fromkeys(("eagle", "eagle3", "medusa", "mtp", "dflash", "dspark", "extract_hidden_states"), _WITH_STATES),
    "ngram_gpu": "it looks n-grams up on a GPU; 'ngram' does so on the CPU",
    "suffix": "modulm-spec-decode has none yet",
}
"""vLLM's methods for which the contract does not suffice."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """A speculator that was chosen and is not made yet.

    Attributes:
        choice: The class, and why.
        num_tokens: Longest draft.
        settings: Checked, of the class's own kind.
    """

    choice: Choice
    num_tokens: int
    settings: Any

    def make(self, *, vocab_size: int, max_model_len: int, max_num_seqs: int) -> Speculator:
        """Return the speculator. Raises `Broken` when its constructor fails."""
        limits = SpeculatorLimits(
            num_tokens=self.num_tokens,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
        )
        return run(
            FAMILY, self.choice.name, "making it", cast(type[Speculator], self.choice.value), self.settings, limits
        )

    @property
    def asked(self) -> str:
        """What to call it in messages."""
        record = record_of(FAMILY, self.choice.name)
        return record.asked if record is not None else f"{NOUNS[FAMILY]} {self.choice.name!r}"

    def failed(self, error: BaseException) -> None:
        """Note that it was switched off."""
        record = record_of(FAMILY, self.choice.name)
        if record is not None:
            loading.failed(record, PluginError(f"{record.asked} failed: {error}. It was switched off."))


def choose_speculation(config: EngineConfig) -> Speculation | None:
    """Return what `speculative_config` asks for; None where nothing is asked.

    Raises `ConfigError` for keys and methods that there are not, `NotInstalled` with what to install.
    """
    given = config.speculative_config
    if given is None:
        return None
    method = _method(given)
    if method in _REFUSED and method not in registry(FAMILY):
        raise ConfigError(
            f"speculative_config method {method!r} is refused: {_REFUSED[method]}. Installed: "
            f"{', '.join(registry(FAMILY).names()) or 'none'}; 'ngram' comes with modulm-spec-decode."
        )
    choice = _custom(method) if ":" in method else None
    choice = choice or choose(FAMILY, method, registry(FAMILY).names(), lambda cls: Accepted())
    cls = cast(type[Speculator], choice.value)
    num_tokens = given.get("num_speculative_tokens", cls.num_tokens)
    if type(num_tokens) is not int or not 1 <= num_tokens <= _MOST_TOKENS:
        raise ConfigError(
            f"speculative_config num_speculative_tokens={num_tokens!r} is refused: it must be a whole number from 1 "
            f"to {_MOST_TOKENS}."
        )
    settings = _settings(choice.name.rpartition(":")[2], cls, given)
    return Speculation(choice=choice, num_tokens=num_tokens, settings=settings)


def _custom(reference: str) -> Choice | None:
    """Return the class of a reference `module:Class`; None for the name `distribution:name` of a plugin."""
    if record_of(FAMILY, reference) is not None or reference in registry(FAMILY):
        return None
    asked = f"{NOUNS[FAMILY]} {reference!r}"
    cls = check(FAMILY, asked, refs.resolve(reference, asked))
    return Choice(FAMILY, reference, cls, [(reference, Accepted("asked for"))])


def _method(given: Mapping[str, Any]) -> str:
    """Return the method: what is named, or as vLLM tells it from the model."""
    method, model = given.get("method"), given.get("model")
    for key in ("method", "model"):
        if given.get(key) is not None and (not isinstance(given[key], str) or not given[key]):
            raise ConfigError(f"speculative_config {key}={given[key]!r} is refused: it must be a name.")
    if method is None and model is None:
        raise ConfigError(
            'speculative_config is refused: it names no method. Give {"method": "ngram"}, or another. Installed: '
            f"{', '.join(registry(FAMILY).names()) or 'none'}."
        )
    if method is None and model is not None:
        method = "custom_class" if _DOTTED.fullmatch(model) else model.strip("[]")
        if method not in ("custom_class", "ngram"):
            method = "draft_model"
    if method != "custom_class":
        return str(method)
    if model is None or not _DOTTED.fullmatch(model):
        raise ConfigError(
            f"speculative_config model={model!r} is refused: method 'custom_class' needs 'package.module.Class' there."
        )
    return model if ":" in model else ":".join(model.rsplit(".", 1))


def _settings(name: str, cls: type[Speculator], given: Mapping[str, Any]) -> Any:
    kind = cls.Settings
    names = setting_names(kind)
    own = {key: value for key, value in given.items() if key in names and key not in _COMMON}
    if "model" in names and "model" in given:
        own["model"] = given["model"]
    for key in given:
        if key not in names and key not in _COMMON:
            there_are = list(dict.fromkeys((*_COMMON, *names)))
            raise ConfigError(
                f"speculative_config {key!r} is refused: method {name!r} has no such setting. There are: "
                f"{', '.join(there_are)}.{did_you_mean(key, there_are)}"
            )
    return plugin_settings(name, kind, own, option="speculative_config")
