"""What a hook may know of the run beside its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

if TYPE_CHECKING:
    from torch import Generator


@runtime_checkable
class Stateful(Protocol):
    """An object that says what it is in numbers, strings, tensors, lists and dicts, and becomes that again."""

    def state_dict(self) -> Any:
        """What `load_state_dict` makes the object of again."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Become what `state_dict` gave."""


Object = TypeVar("Object", bound=Stateful)


@dataclass(frozen=True, slots=True)
class Kept:
    """What `Context.keep` holds in a plugin's state."""

    value: Stateful


@dataclass(frozen=True, slots=True)
class Context:
    """`step` counts from 0 to `total_steps` − 1.

    `generator` is seeded by the run and the step, the same on every rank. A draw per token depends on how the batch is
    cut; a draw per run or step does not.
    `state` is the plugin's own, kept from step to step and checkpointed: numbers, strings, tensors, lists and dicts.
    `keep` does the same for an object.
    """

    step: int
    total_steps: int
    generator: Generator
    state: dict[str, Any]

    def keep(self, name: str, make: Callable[[], Object]) -> Object:
        """The plugin's object of this name, kept from step to step and checkpointed by its `state_dict()`.

        The first call makes it; after a resume, and in another process, the first call makes it and loads what was saved.
        Ask for it in every hook call: a reference of your own is not what a resumed run has. Raises TypeError for an
        object without `state_dict()` and `load_state_dict()`.
        """
        kept = self.state.get(name)
        if not isinstance(kept, Kept):
            made = make()
            if not isinstance(made, Stateful):
                raise TypeError(f"keep('{name}'): {type(made).__name__} has no state_dict() and load_state_dict()")
            if name in self.state:
                made.load_state_dict(kept)
            kept = self.state[name] = Kept(made)
        return cast("Object", kept.value)
