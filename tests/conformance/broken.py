"""One plugin for each check, which that check alone catches."""

from __future__ import annotations

from sources import CLIPPED, GOOD, HEAD, component, estimator, hook, loss, plugin

RULE = """
if topology.n_samples_per_prompt == 3:
    {}
return []
"""


def rule(body):
    return estimator() + "\n\n" + hook("validate_topology", RULE.format(body), "topology")


STATIC = {
    "RLX701": HEAD + "1 / 0\n",
    "RLX704": HEAD + hook("compute_advantage", "return Advantage(rollout.to_tokens(rollout.rewards))", "rollout"),
    "RLX705": estimator(more=", hook_api=2"),
    "RLX706": HEAD + '@hookimpl\ndef algorithm():\n    return AlgorithmSpec("mine", "")\n',
    "RLX711": estimator() + hook("rollout_metric", "return {}", "rollout"),
    "RLX712": estimator() + "\n\ndef rollout_metrics(rollout):\n    return {}\n",
    "RLX714": estimator().replace("compute_advantage(rollout)", "compute_advantage(*, rollout)"),
    "RLX715": estimator().replace("compute_advantage(rollout)", "compute_advantage(rollout, configuration)"),
    "RLX716": estimator("yield Advantage(rollout.to_tokens(rollout.rewards))"),
    "RLX717": plugin("estimator=Estimator(), loss=Loss()", hook("compute_advantage", "return None", "rollout")).replace(
        "return None", "return Advantage(rollout.to_tokens(rollout.rewards))"
    ),
    "RLX718": component("loss_term", "return LossTerm(batch.log_ratio(), 0.1)") + hook("policy_loss", GOOD, "batch"),
    "RLX721": estimator(head="try:\n    import ray\nexcept ImportError:\n    ray = None\n"),
    "RLX731": loss(
        more=", config=Config", head='class Config(AlgorithmConfig):\n    model_config = ConfigDict(extra="allow")\n'
    ),
    "RLX732": loss(
        more=", config=Config", head='class Config(AlgorithmConfig):\n    margin: float\n    """A margin."""\n'
    ),
    "RLX733": loss(
        more=", config=Config", head='class Config(AlgorithmConfig):\n    margin: float = "0.2"\n    """A margin."""\n'
    ),
    "RLX734": loss(more=", config=Config", head="class Config(AlgorithmConfig):\n    margin: float = 0.2\n"),
    "RLX735": loss(
        more=", config=Config", head='class Config(AlgorithmConfig):\n    plugins: float = 0.2\n    """A margin."""\n'
    ),
    "RLX736": loss(more=', flags=(Flag("--margin", ("margin",)),)'),
    "RLX737": loss(declared='aggregations=frozenset({"token_mean"})'),
    "RLX738": component("loss_term", "return LossTerm(batch.log_ratio(), 0.1)", "enabled=lambda config: False"),
    "RLX739": estimator(
        "return Advantage(rollout.to_tokens(rollout.rewards * rollout.lengths))",
        more=', fields=(SequenceField("lengths"),)',
    ),
}
"""By the id that is expected. RLX702, RLX703 and RLX713 need an installed distribution."""

MEAN = "counts = torch.zeros(batch.size, dtype=torch.float64).index_add(0, batch.sequence_ids, {}.double())\n"
FIRST = "first = torch.searchsorted(rollout.group_ids, rollout.group_ids)\n"
ADVANTAGE = "return Advantage(rollout.to_tokens({}))"
CENTRED = "centred = rollout.rewards - rollout.group_mean(rollout.rewards)\n"
SIZE = "size = rollout.group_sum(torch.ones_like(rollout.rewards))\n"
GROUPED = "min_group_size=2"
SCALED = ", reward_scale_invariant=True"
SEQUENCE = """
log_ratio = batch.to_tokens(batch.sequence_mean(batch.log_ratio().detach()))
ratio = (log_ratio + batch.log_probs - batch.log_probs.detach()).exp()
return PolicyLoss(-ratio * batch.advantages)
"""

NUMERIC = {
    "RLX801": estimator('raise ValueError("not today")'),
    "RLX802": loss(CLIPPED + "return PolicyLoss(per_token.mean())"),
    "RLX803": estimator(ADVANTAGE.format("rollout.rewards / rollout.finish_reasons")),
    "RLX811": loss(CLIPPED + "return PolicyLoss(per_token + 0.01 * batch.size)"),
    "RLX812": loss(
        CLIPPED + MEAN.format("batch.live") + "return PolicyLoss(per_token + 0.01 * batch.to_tokens(counts))"
    ),
    "RLX813": estimator(ADVANTAGE.format("rollout.rewards - rollout.rewards.mean()"), "reward_shift_invariant=True"),
    "RLX814": estimator(
        FIRST + ADVANTAGE.format("rollout.rewards - rollout.rewards[first]"), "reward_shift_invariant=True"
    ),
    "RLX815": estimator(
        MEAN.format("torch.ones_like(batch.live)").replace("batch", "rollout")
        + ADVANTAGE.format("rollout.rewards / counts.clamp(min=1)")
    ),
    "RLX816": loss(CLIPPED + 'return PolicyLoss(per_token, {"ratio": Max(batch.local_mean(ratio))})'),
    "RLX821": estimator(
        "every = torch.ones_like(rollout.raw_mask)\n"
        + ADVANTAGE.format("rollout.rewards - 0.01 * rollout.sequence_sum(rollout.old_log_probs, mask=every)"),
        "requires_old_log_probs=True",
    ),
    "RLX822": component(
        "loss_term",
        """
        gap = batch.log_probs - batch.old_log_probs
        gap = torch.where(batch.raw_mask, gap.clamp(-0.5, 0.5), gap)
        return LossTerm(torch.where(batch.live, torch.log1p(gap), 0.0), 0.1)
        """,
    ),
    "RLX823": estimator(
        "advantages = rollout.to_tokens(rollout.rewards)\nreturn Advantage(advantages - rollout.all_live(advantages).max())",
        "reward_shift_invariant=True",
    ),
    "RLX824": loss(
        "ratio = torch.where(batch.live, batch.log_probs - batch.old_log_probs, 0.0).exp()\n"
        "return PolicyLoss(-ratio * batch.advantages)"
    ),
    "RLX831": loss("return PolicyLoss(batch.ratio() * batch.advantages)"),
    "RLX832": loss(CLIPPED + "return PolicyLoss(per_token + (advantages == 0) * batch.log_ratio().square())"),
    "RLX833": loss(
        "ratio, advantages = batch.ratio(), batch.advantages\n"
        "return PolicyLoss(-torch.minimum(ratio, 1 + 0.1 * advantages.abs()) * advantages)"
    ).replace("1 + 0.1", "1.05 + 0.1"),
    "RLX834": loss("return PolicyLoss(-batch.ratio().detach() * batch.advantages * batch.log_probs)"),
    "RLX835": estimator(ADVANTAGE.format("(rollout.rewards + 1000) - 1000")),
    "RLX841": estimator(
        "CALLS.append(1)\nreturn Advantage(rollout.to_tokens(rollout.rewards) + len(CALLS))", head="CALLS = []"
    ),
    "RLX842": estimator("torch.rand(1)\n" + ADVANTAGE.format("rollout.rewards")),
    "RLX843": estimator("rollout.rewards.clamp_(min=0.0)\n" + ADVANTAGE.format("rollout.rewards")),
    "RLX846": loss("if batch.live.sum().item() > 1_000_000:\n    return PolicyLoss(batch.log_probs * 0)\n" + GOOD),
    "RLX847": loss('open("/dev/null").close()\n' + GOOD),
    "RLX851": estimator(ADVANTAGE.format("rollout.rewards + rollout.sequence_mean(rollout.ref_log_probs)")),
    "RLX852": loss(declared="requires_reference=True"),
    "RLX853": loss(declared="supports_context_parallel=False"),
    "RLX854": loss(declared='scope="microbatch"'),
    "RLX855": loss(declared='surrogate_gradient="it was once"'),
    "RLX856": loss(declared="policy_gradient=False"),
    "RLX857": loss(SEQUENCE, 'surrogate_gradient="the mean is a constant"'),
    "RLX858": loss(declared='scope="sequence"'),
    "RLX861": loss(CLIPPED + 'return PolicyLoss(per_token, {"KL mean!": TokenMean(ratio)})'),
    "RLX862": loss(CLIPPED + 'return PolicyLoss(per_token, {"ratio": ratio.detach().sum()})'),
    "RLX863": loss(CLIPPED + 'return PolicyLoss(per_token, {"ratio": TokenMean(ratio)} if batch.size else {})'),
    "RLX871": component("post_loss_weight", "return Weight(batch.ratio())"),
    "RLX872": component("post_loss_weight", "return Weight(-torch.ones_like(batch.log_probs))"),
    "RLX873": component("pre_loss_mask", "return Mask(rollout.raw_mask.double())", arguments="rollout"),
    "RLX874": estimator("advantages = rollout.to_tokens(rollout.rewards)\nreturn Advantage(advantages, advantages)"),
    "RLX881": estimator(
        CENTRED + ADVANTAGE.format("centred / (rollout.batch_std(rollout.rewards) + 1e-6)"), GROUPED + SCALED
    ),
    "RLX882": estimator(
        SIZE + ADVANTAGE.format("rollout.rewards - rollout.group_sum(rollout.rewards) / size"), GROUPED
    ),
    "RLX883": estimator(CENTRED + SIZE + ADVANTAGE.format("torch.where(size == 1, rollout.rewards, centred)"), GROUPED),
    "RLX884": estimator(CENTRED + ADVANTAGE.format("centred * rollout.rewards"), GROUPED),
    "RLX885": estimator(CENTRED + ADVANTAGE.format("centred"), GROUPED + SCALED),
    "RLX886": estimator("return Advantage(rollout.discounted_sum(rollout.at_last(rollout.rewards), 0.9))"),
    "RLX887": estimator(declared="per_token=True"),
    "RLX891": rule('raise ValueError("three")'),
    "RLX892": rule('return [Violation("three", "rollout.n_samples_per_prompt", "is three", "write 4")]'),
    "RLX893": rule("pass")
    .replace("== 3", "== 4")
    .replace("pass", 'return [Violation("FOUR01", "rollout.n_samples_per_prompt", "is four", "write 3")]'),
    "RLX894": estimator(
        SIZE + "if (size == 2).any():\n    raise ValueError('two')\n" + ADVANTAGE.format("rollout.rewards")
    ),
}
