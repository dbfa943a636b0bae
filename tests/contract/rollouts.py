"""Random rollouts with everything that is awkward about real ones."""

from __future__ import annotations

import torch

from relax_core.batch import Rollout, build

GROUPS, GROUP_SIZE, CANDIDATES = 5, 3, 4
LENGTHS = torch.tensor([3, 9, 1, 6, 0, 4, 8, 5, 2, 7, 3, 6, 1, 10, 4])
EMPTY, SILENT = 4, 7
"""The sequence without a token, and the one whose tokens are all masked."""


def random_rollout(seed=0):
    """Groups of unequal sequences, tool tokens, garbage under the mask; and what a forward pass gives for tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    total = len(ids)
    live = (uniform(total) < 0.75) & (ids != SILENT)
    old = -3 * uniform(total)
    tokens = {
        "old_log_probs": old,
        "rollout_log_probs": old + 0.4 * (uniform(total) - 0.5),
        "ref_log_probs": -3 * uniform(total),
        "teacher_log_probs": -3 * uniform(total),
        "values": uniform(total) - 0.5,
        "turn_reward": uniform(total).round(),
        "teacher_candidate_log_probs": -4 * uniform(total, CANDIDATES),
    }
    forward = {
        "log_probs": old + 1.2 * (uniform(total) - 0.5),
        "entropy": uniform(total),
        "candidate_log_probs": -4 * uniform(total, CANDIDATES),
    }
    rewards = uniform(len(LENGTHS)).round(decimals=3)
    rewards[6:9] = 0.7
    sequences = {
        "rewards": rewards,
        "group_ids": torch.arange(GROUPS).repeat_interleave(GROUP_SIZE),
        "lengths": LENGTHS,
        "correct": (rewards > 0.5).double(),
        "demonstration": torch.arange(len(LENGTHS)) % GROUP_SIZE == 0,
    }
    rollout = build(Rollout, ids, {**_poison(tokens, live), "raw_mask": live}, sequences)
    return rollout, _poison(forward, live)


def _poison(tokens, live):
    return {
        name: value.masked_fill(~live.reshape(-1, *[1] * (value.dim() - 1)), torch.nan)
        for name, value in tokens.items()
    }


def packed(*, mask, rewards=None, groups=None, sequences=None, **tokens):
    """A rollout from lists per sequence."""
    lengths = torch.tensor([len(each) for each in mask])
    flat = {name: torch.tensor([value for each in parts for value in each]).double() for name, parts in tokens.items()}
    flat["raw_mask"] = torch.tensor([value for each in mask for value in each], dtype=torch.bool)
    per_sequence = {
        "rewards": torch.tensor(rewards or [0.0] * len(mask), dtype=torch.float64),
        "group_ids": torch.tensor(groups or [0] * len(mask), dtype=torch.long),
        "lengths": lengths,
        **{name: torch.tensor(value) for name, value in (sequences or {}).items()},
    }
    return build(Rollout, torch.arange(len(mask)).repeat_interleave(lengths), flat, per_sequence)
