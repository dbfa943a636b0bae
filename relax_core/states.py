"""The plugins' states as checkpoints and other processes have them: in plain values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from relax_core.binding import BoundPlugin
from relax_core.context import Kept
from relax_core.errors import FOREIGN, PluginError, describe

PLAIN = (type(None), bool, int, float, complex, str, bytes, Tensor, Parameter)
"""By exact type: a NumPy number is a `float`, and is written as something else."""
MAPPINGS, SEVERAL = (dict, OrderedDict), (list, tuple, set)
FIX = "keep numbers, strings, tensors, lists and dicts, or an object by context.keep(name, make)"


def plain_states(active: Sequence[BoundPlugin]) -> dict[str, dict[str, Any]]:
    """The states that hold anything, by plugin. Raises PluginError for what no checkpoint can hold."""
    return {plugin.name: _plain_state(plugin) for plugin in active if plugin.state}


def put_states(active: Sequence[BoundPlugin], states: Mapping[str, dict[str, Any]]) -> None:
    """Every state as `plain_states` gave it: what it did not hold is gone."""
    for plugin in active:
        state = states.get(plugin.name, {})
        for name in plugin.state.keys() - state.keys():
            del plugin.state[name]
        plugin.state.update(state)


def _plain_state(plugin: BoundPlugin) -> dict[str, Any]:
    found = {}
    for name, value in list(plugin.state.items()):
        found[name] = _state_dict(plugin, name, value) if isinstance(value, Kept) else value
        for strange in _strange((name, found[name])):
            kind = type(strange).__qualname__
            problem = f"its state '{name}' holds a value of type {kind}, which no checkpoint can hold"
            raise PluginError(problem, who=f"plugin '{plugin.name}'", fix=FIX)
    return found


def _state_dict(plugin: BoundPlugin, name: str, kept: Kept) -> Any:
    try:
        return kept.value.state_dict()
    except FOREIGN as error:
        problem = f"state_dict() of its '{name}' raised {describe(error)}"
        raise PluginError(problem, who=f"plugin '{plugin.name}'") from error


def _strange(value: Any) -> Iterator[Any]:
    """What is not plain in a value."""
    if type(value) in MAPPINGS:
        for item in value.items():
            yield from _strange(item)
    elif type(value) in SEVERAL:
        for each in value:
            yield from _strange(each)
    elif type(value) not in PLAIN:
        yield value
