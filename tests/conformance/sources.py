"""Plugin files to be broken: a head, a declaration, and one hook."""

from __future__ import annotations

import textwrap

HEAD = """
import math
import torch
from pydantic import ConfigDict
from relax_core import *
"""
CLIPPED = """
ratio, advantages = batch.ratio(), batch.advantages
per_token = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
"""
GOOD = CLIPPED + 'return PolicyLoss(per_token, {"pg_clipfrac": TokenMean(ratio > 1.28)})'


def plugin(declared, *hooks, head=""):
    """A file: what it declares, then its hooks."""
    config = "class Config(AlgorithmConfig):\n    pass\n" if "Config" in declared and "class Config" not in head else ""
    declaration = f'@hookimpl\ndef algorithm():\n    return AlgorithmSpec("mine", "A plugin", {declared})\n'
    return "\n\n".join([HEAD, head, config, declaration, *hooks])


def hook(name, body, arguments):
    return f"@hookimpl\ndef {name}({arguments}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


def loss(body=GOOD, declared="", *, head="", more=""):
    """A loss; what it declares replaces nothing but `supports_context_parallel=True`, unless it names that."""
    cp = "" if "supports_context_parallel" in declared else "supports_context_parallel=True, "
    return plugin(f"loss=Loss({cp}{declared}){more}", hook("policy_loss", body, "batch"), head=head)


def estimator(body="return Advantage(rollout.to_tokens(rollout.rewards))", declared="", *, head="", more=""):
    return plugin(f"estimator=Estimator({declared}){more}", hook("compute_advantage", body, "rollout"), head=head)


def component(name, body, declared="", *, head="", more="", arguments="batch"):
    head = head or 'class Config(ComponentConfig):\n    coef: float = 0.1\n    """Its weight."""\n'
    role = f"config=Config, component=Component(supports_context_parallel=True, {declared}){more}"
    return plugin(role, hook(name, body, arguments), head=head)
