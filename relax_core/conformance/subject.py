"""A plugin under check: what was found of it, even where it is broken, and its hooks ready to be called on samples."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.conformance.variants import Variant, variants
from relax_core.discovery import GROUP, Plugin
from relax_core.errors import FOREIGN
from relax_core.registry import Registry
from relax_core.sources import load_source
from relax_core.spec import AlgorithmSpec

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.ranks import Ranks


class Subject:
    """What checks look at. `config` is an `algorithm` section whose fields take the place of the plugin's defaults."""

    def __init__(
        self, plugin: Plugin, registry: Registry, *, seed: int = 0, config: Mapping[str, Any] | None = None
    ) -> None:
        self.plugin = plugin
        self.registry = registry
        self.seed = seed
        self.config = config
        self._calls: dict[str, list[Call]] = {}

    @property
    def module(self) -> Any:
        """The plugin's module or object, loaded again where discovery gave up on it; None where it does not load."""
        return self._loaded[0]

    @property
    def load_error(self) -> str:
        """Why the plugin does not load."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Any, str]:
        if self.plugin.module is not None:
            return self.plugin.module, ""
        try:
            path = Path(self.plugin.distribution)
            if path.suffix == ".py":
                return load_source(path, f"relax_conformance_{path.stem}"), ""
            return self.entry and self.entry.load(), ""
        except FOREIGN as error:
            return None, located(error, None)

    @cached_property
    def spec(self) -> AlgorithmSpec | None:
        """The plugin's declaration, where it gives one."""
        if self.plugin.spec is not None:
            return self.plugin.spec
        try:
            spec = self.module.algorithm()
        except FOREIGN:
            return None
        return spec if isinstance(spec, AlgorithmSpec) else None

    @property
    def plugin_as_loaded(self) -> Plugin:
        """The plugin as if nothing stood against using it."""
        return replace(self.plugin, status="loaded")

    @property
    def entry(self) -> importlib.metadata.EntryPoint | None:
        """The entry point by which it was found."""
        entries = importlib.metadata.entry_points(group=GROUP, name=self.plugin.name)
        return next((each for each in entries if each.dist and each.dist.name == self.plugin.distribution), None)

    @property
    def runs(self) -> bool:
        """Whether its hooks can be called."""
        return self.plugin.status != "broken" and self.plugin.spec is not None and bool(self.plugin.spec.roles)

    @property
    def file(self) -> Path | None:
        """The source file of the plugin."""
        home = sys.modules.get(getattr(self.module, "__module__", ""), self.module)
        found = getattr(home, "__file__", None)
        return Path(found) if found else None

    @cached_property
    def variants(self) -> list[Variant]:
        """The configurations under which it is checked; none where its declaration breaks down (see RLX737, RLX738)."""
        try:
            return list(variants(self.plugin, self.config)) if self.runs else []
        except FOREIGN:
            return []

    @cached_property
    def ranks(self) -> Ranks:
        """What its hooks come to on two processes; they are started once."""
        from relax_core.conformance.ranks import run

        return run(self)

    def implementations(self, hook: str) -> list[Call]:
        """The hook under every configuration that matters to it; empty where it is not implemented."""
        return [call for each in self.variants if each.concerns(hook) for call in self.under(each, hook)]

    def under(self, variant: Variant, hook: str) -> list[Call]:
        """The hook under one configuration; empty where it is not implemented."""
        from relax_core.conformance.call import Call

        callable_ = hook in variant.bound.hooks and is_callable(getattr(self.module, hook))
        return [Call(self, variant, hook)] if callable_ else []

    def calls(self, hook: str) -> list[Call]:
        """Those of `implementations` that give what the contract says on a plain sample."""
        if hook not in self._calls:
            self._calls[hook] = [call for call in self.implementations(hook) if call.works]
        return self._calls[hook]

    def described(self, error: BaseException) -> str:
        """An exception as `Type: message (file.py:line)`, the line being the plugin's own where it has a part in it."""
        while isinstance(error.__cause__, Exception):
            error = error.__cause__
        return located(error, self.file)


def located(error: BaseException, file: Path | None) -> str:
    """`Type: message (file.py:line)`: the last line in `file`, or else the last that is not the import system's own."""
    frames = [(Path(each.f_code.co_filename), line) for each, line in traceback.walk_tb(error.__traceback__)]
    mine = [place for place in frames if place[0] == file]
    real = [place for place in frames if not str(place[0]).startswith("<")]
    where = "".join(f" ({path.name}:{line})" for path, line in (mine or real)[-1:])
    return f"{type(error).__name__}: {error}{where}"


def is_callable(hook: Any) -> bool:
    """Whether pluggy can call a hook as it is: plain positional arguments, and no generator."""
    parameters = inspect.signature(hook).parameters.values()
    plain = all(each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty for each in parameters)
    return plain and not inspect.isgeneratorfunction(hook)
