"""Whether a class keeps its contract: asked once, when it is loaded, so that nothing is looked at again in a call.

The classes of `modulm.interfaces` are the contracts, their signatures included: core passes what has no default by
position, what stands after `*` by name, and everything else by name as well, except to constructors. What has a default
is optional: a plugin that does not name it does not get it, so that a new one breaks nobody. Who wants to know whether
it is named asks `takes`. Knows no group; `families.py` says which contract is whose.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache, wraps
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, ClassVar, get_origin

from modulm.errors import Incompatible

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@cache
def fitted(found: type, base: type) -> type:
    """Return the class, or one derived from it whose methods leave out what its own do not take.

    Where a class of the contract's module stands between `found` and `base`, its signatures are those that count.

    Raises `Incompatible` with the end of a sentence about the class: what is wrong with it, and what to change.
    """
    contract = next((each for each in found.__mro__ if each.__module__ == base.__module__), base)
    keep(found, contract)
    leaner = {}
    for name, promised in _promises(contract):
        taken = _signature(found, name)
        if taken is not None and (lacking := _lacking(name, promised, taken)):
            leaner[name] = _leaner(found, name, lacking, len(_positions(taken)))
    if not leaner:
        return found
    same = {"__module__": found.__module__, "__qualname__": found.__qualname__, "__doc__": found.__doc__}
    try:
        return type(found)(found.__name__, (found,), {**same, **leaner})
    except Exception as error:  # final, or particular about who derives from it
        raise Incompatible(
            f"whose {' and '.join(leaner)} must take every argument of {_title(contract)}: no class that leaves "
            f"some out can be derived from it ({error!r})."
        ) from error


def keep(found: Any, contract: type) -> None:
    """Check a class, or an object, against the attributes, methods and signatures of a contract; raises as `fitted`."""
    lacking = sorted(getattr(found, "__abstractmethods__", ()))
    lacking += [name for name in _attributes(contract) if not hasattr(found, name)]
    lacking += [name for name, _ in _promises(contract) if not callable(getattr(found, name, None))]
    if lacking:
        raise Incompatible(
            f"which lacks {' and '.join(dict.fromkeys(lacking))} of {_title(contract)}. Add what is missing."
        )
    for name, promised in _promises(contract):
        taken = _signature(found, name)
        if isinstance(found, type) and _is_bound(contract, name) and not _is_bound(found, name):
            raise Incompatible(f"whose {name}() must be a class method: core calls it on the class.")
        if taken is not None and (wrong := _wrong(name, promised, taken)):
            raise Incompatible(
                f"whose {_shown(name, taken)} does not fit: core calls {_shown(name, promised)}. {wrong}."
            )


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a method of a class that `fitted` returned names an optional argument, so that it gets it."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == argument or each.kind is Parameter.VAR_KEYWORD for each in parameters)


def _promises(contract: type) -> Iterator[tuple[str, Signature]]:
    """Yield (name, signature without self) of what core calls."""
    for name in dict.fromkeys(name for each in contract.__mro__ for name in vars(each)):
        function = inspect.getattr_static(contract, name)
        ours = str(getattr(function, "__module__", "")).startswith("modulm.interfaces.")
        if ours and (name == "__init__" or not name.startswith("_")) and _is_method(function):
            signature = _signature(contract, name)
            assert signature is not None
            yield name, signature


def _attributes(contract: type) -> Iterator[str]:
    """Yield the names of class attributes without a value of their own."""
    for each in contract.__mro__:
        for name, hint in vars(each).get("__annotations__", {}).items():
            if get_origin(hint) is ClassVar and not hasattr(contract, name):
                yield name


def _is_method(function: Any) -> bool:
    return isinstance(function, FunctionType | classmethod | staticmethod)


def _signature(holder: Any, name: str) -> Signature | None:
    """Return what a caller passes, self left out; None where Python cannot tell."""
    try:
        signature = inspect.signature(getattr(holder, name))
    except Exception:  # a plugin's own descriptors may raise anything
        return None
    if isinstance(holder, type) and not _is_bound(holder, name):
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _is_bound(holder: Any, name: str) -> bool:
    """Whether what a class has of that name needs no object to be called."""
    return not isinstance(inspect.getattr_static(holder, name, None), FunctionType)


def _positions(signature: Signature) -> list[Parameter]:
    return [each for each in signature.parameters.values() if each.kind in _BY_POSITION]


def _has(signature: Signature, kind: Any) -> bool:
    return any(each.kind is kind for each in signature.parameters.values())


def _optional(signature: Signature) -> list[str]:
    return [each.name for each in signature.parameters.values() if each.default is not Parameter.empty]


def _wrong(name: str, promised: Signature, taken: Signature) -> str:
    """Say what to change where a call as promised would fail, or return an empty string."""
    passed = [each.name for each in _positions(promised) if each.default is Parameter.empty]
    own, named = _positions(taken), {each.name for each in taken.parameters.values() if each.kind in _BY_NAME}
    by_name = [each.name for each in promised.parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
    missing = [] if _has(taken, Parameter.VAR_POSITIONAL) else passed[len(own) :]
    if not _has(taken, Parameter.VAR_KEYWORD):
        missing += [each for each in by_name if each not in named and each not in _optional(promised)]
    if missing:
        return f"Let it take {' and '.join(missing)} as well"
    filled = len(_positions(promised)) if name == "__init__" else len(passed)
    rest = [*own[filled:], *(each for each in taken.parameters.values() if each.kind is Parameter.KEYWORD_ONLY)]
    extra = [each.name for each in rest if each.default is Parameter.empty and each.name not in promised.parameters]
    return f"Give {' and '.join(extra)} a default: core does not pass it" if extra else ""


def _lacking(name: str, promised: Signature, taken: Signature) -> list[str]:
    """Return the optional arguments that a call must leave out."""
    if name == "__init__" and not _has(taken, Parameter.VAR_POSITIONAL):
        return [each.name for each in _positions(promised)[len(_positions(taken)) :]]
    if _has(taken, Parameter.VAR_KEYWORD):
        return []
    named = {each.name for each in taken.parameters.values() if each.kind in _BY_NAME}
    return [each for each in _optional(promised) if each not in named]


def _leaner(found: type, name: str, lacking: list[str], most: int) -> Any:
    """Return what stands for a method and leaves out arguments that it lacks."""
    function, is_bound = getattr(found, name), _is_bound(found, name)

    @wraps(function)
    def leaner(*args: Any, **named: Any) -> Any:
        for each in lacking:
            named.pop(each, None)
        return function(*(args if is_bound else args[: most + 1]), **named)

    return staticmethod(leaner) if is_bound else leaner


def _title(contract: type) -> str:
    return f"{contract.__module__}.{contract.__qualname__}"


def _shown(name: str, signature: Signature) -> str:
    parameters = []
    for each in signature.parameters.values():
        default = each.default if each.default is Parameter.empty else ...
        parameters.append(each.replace(annotation=Parameter.empty, default=default))
    shown = str(Signature(parameters)).replace("=Ellipsis", "=...")
    return f"{name}{shown}"
