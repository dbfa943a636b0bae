"""How far the log-probs of the engine that samples are from those of the engine that trains."""

from __future__ import annotations

from relax_core.batch import Rollout
from relax_core.config import RolloutSection
from relax_core.errors import RunError

METRIC = "train/is_logprob_abs_diff"
"""The metric of it, which is over all tokens: those of older weights differ for more than the engines' sake."""
FRESH = f"{METRIC}_fresh"
"""The same over the tokens that the weights of the step sampled."""


def gap_of(rollout: Rollout) -> float | None:
    """Mean |log π_old − log π_rollout| over the live tokens that the weights of this step sampled; None without any."""
    if not (rollout.has("old_log_probs") and rollout.has("rollout_log_probs")):
        return None
    fresh = rollout.raw_mask & (rollout.staleness == 0)
    gap = (rollout.old_log_probs - rollout.rollout_log_probs).double().abs()[fresh]
    return float(gap.mean()) if len(gap) else None


def refuse(gap: float | None, rollout: RolloutSection) -> None:
    """Raise RunError where a step's mean |log π_old − log π_rollout| is above `rollout.mismatch_stop`, or no number."""
    limit = rollout.mismatch_stop
    if gap is not None and limit is not None and not gap <= limit:
        problem = f"{METRIC} is {gap:.3g}, above rollout.mismatch_stop = {limit:g}"
        fix = "look for stale weights, another dtype or truncated sampling; rollout.verify_weights compares each update"
        raise RunError(problem, who=f"rollout engine '{rollout.engine}'", fix=fix)


def warnings(gap: float | None, rollout: RolloutSection) -> list[str]:
    """A sentence where the same is above `rollout.mismatch_warn`, or no number."""
    limit = rollout.mismatch_warn
    if gap is None or limit is None or gap <= limit:
        return []
    return [f"{METRIC} is {gap:.3g}, above rollout.mismatch_warn = {limit:g}"]
