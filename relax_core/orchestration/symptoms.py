"""Runs that go on and learn nothing: what shows it in the metrics, and what usually causes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symptom:
    """A metric, when it is a bad sign, whether at once or only after some steps in a row, and what to say then."""

    metric: str
    bad: Callable[[float], bool]
    says: str
    lasting: bool = True


SYMPTOMS = (
    Symptom(
        "rollout/reward_std",
        lambda value: value == 0,
        "every reward is the same, so nothing is learned: the task is too hard for the policy or solved, or the reward "
        "does not look at the response; read samples.jsonl",
    ),
    Symptom(
        "rollout/adv_zero_ratio",
        lambda value: value == 1,
        "no response has an advantage, so nothing is learned: within each group the rewards are equal; take easier prompts, "
        "a higher temperature or more samples a prompt",
    ),
    Symptom(
        "rollout/truncated_ratio",
        lambda value: value >= 0.95,
        "almost every response ends at rollout.max_new_tokens: it is too small, or the policy has unlearned to stop, as it "
        "does where a longer response is rewarded",
    ),
    Symptom(
        "train/entropy",
        lambda value: value < 0.01,
        "the policy hardly varies any more: lower the learning rate, add an entropy term, or stop here where the reward is good",
    ),
    Symptom(
        "train/approx_kl",
        lambda value: abs(value) > 1,
        "the policy moved far within one step: lower the learning rate or the number of updates a rollout",
        lasting=False,
    ),
    Symptom(
        "train/ref_kl",
        lambda value: value > 10,
        "the policy is far from its reference: raise the KL's weight, or look for a reward that can be tricked",
        lasting=False,
    ),
)


class Watch:
    """Counts how many steps in a row each symptom has shown; `steps` of them are lasting."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._seen: Counter[str] = Counter()

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """A sentence for each symptom that became a lasting one in this step; it is said again after it was gone."""
        for each in SYMPTOMS:
            value = metrics.get(each.metric)
            self._seen[each.metric] = self._seen[each.metric] + 1 if value is not None and each.bad(value) else 0
            needed = self.steps if each.lasting else 1
            if self._seen[each.metric] == needed:
                since = f" for {needed} steps" if needed > 1 else ""
                yield f"{each.metric} is {value:.3g}{since}: {each.says}"
