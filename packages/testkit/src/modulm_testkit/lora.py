"""Conformance of LoRA resolvers (`modulm.interfaces.lora`): a name from a client becomes an adapter, or nothing.

The author names the adapters that the resolver must find. Names come from the network, so most of them are not his.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from modulm.interfaces.lora import LoRAResolver
from modulm.types import Adapter
from modulm_testkit.suite import Conformance, ask_for

_HOSTILE = (
    "../secret",
    "a/../../secret",
    "/etc",
    "..",
    ".",
    "",
    "~",
    "a\0b",
    "a\nb",
    "C:\\x",
    "x" * 5000,
    "%2e%2e/secret",
)


class LoRAResolverConformance(Conformance):
    """Give `resolver`: an object of the class that the entry point of `modulm.lora_resolvers` names.

    Attributes:
        base_model_name: The model that is served.
        adapters: Names that the resolver must find for it; two tell more than one.
    """

    base_model_name: ClassVar[str] = "tiny"
    adapters: ClassVar[Sequence[str]] = ()

    @pytest.fixture(name="resolver")
    def _resolver(self) -> Any:
        """Return the resolver."""
        ask_for("resolver", "MyResolver()")

    @pytest.fixture
    def known(self) -> Sequence[str]:
        """The adapters' names."""
        if not self.adapters:
            ask_for("adapters", '["name"], a class attribute: what it must find')
        return self.adapters

    def test_finds_adapters(self, resolver: LoRAResolver, known: Sequence[str]) -> None:
        """A known name gives an `Adapter` of that name, with a key, whose files are there."""
        for name in known:
            found = asyncio.run(self._resolve(resolver, name))
            assert isinstance(found, Adapter), f"{name!r} gave {found!r}"
            assert found.name == name
            assert found.key
            assert Path(found.path).exists(), f"{found.path} does not exist"

    def test_leaves_unknown_names_to_others(self, resolver: LoRAResolver) -> None:
        """A name that is not its own gives None: the next resolver is asked."""
        assert asyncio.run(self._resolve(resolver, "no-such-adapter")) is None

    @pytest.mark.parametrize("name", _HOSTILE, ids=lambda name: ascii(name)[:20])
    def test_hostile_names_find_nothing(self, resolver: LoRAResolver, name: str) -> None:
        """No name leads outside the resolver's own place: such a name finds nothing, or is refused.

        What breaks it: joining a client's name to a folder. An error counts as None.
        """
        try:
            found = asyncio.run(self._resolve(resolver, name))
        except (OSError, ValueError):
            return
        assert found is None, f"{name!r} gave {found!r}"

    def test_keys_stand_for_contents(self, resolver: LoRAResolver, known: Sequence[str]) -> None:
        """The same adapter has the same key each time, and another one another: the prefix cache goes by it."""
        keys = {name: {self._found(resolver, name).key for _ in range(3)} for name in known}
        assert all(len(each) == 1 for each in keys.values()), f"keys change: {keys}"
        assert len(set.union(*keys.values())) == len(known), f"two adapters have one key: {keys}"

    def test_answers_many_at_once(self, resolver: LoRAResolver, known: Sequence[str]) -> None:
        """Requests for the same adapter come at once, and all get the same answer."""

        async def ask() -> list[Adapter | None]:
            return await asyncio.gather(*(self._resolve(resolver, known[0]) for _ in range(8)))

        answers = asyncio.run(ask())
        one = self._found(resolver, known[0])
        assert {(each.name, each.path) if each else None for each in answers} == {(one.name, one.path)}

    def _resolve(self, resolver: LoRAResolver, name: str) -> Coroutine[Any, Any, Adapter | None]:
        return resolver.resolve_lora(self.base_model_name, name)

    def _found(self, resolver: LoRAResolver, name: str) -> Adapter:
        found = asyncio.run(self._resolve(resolver, name))
        if found is None:
            pytest.skip(f"{name!r} is not found: see test_finds_adapters")
        return found
