"""Fourteen losses as authors write them, and the findings that each deserves.

Two differ from the first only in how they reduce, which a plugin cannot: `ppo_seq` is the same plugin under
`loss_agg_mode: seq-mean-token-mean`, and `ppo_local_mean` can only divide each token by the count that it sees.
"""

from __future__ import annotations

from sources import CLIPPED, GOOD, loss

RATIO = "ratio, advantages = (batch.log_probs - batch.old_log_probs).exp(), batch.advantages\n"
SURROGATE = "per_token = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)\n"
CISPO = """
weight = batch.ratio().clamp(max=2.0).detach()
return PolicyLoss(-weight * batch.advantages * batch.log_probs)
"""
GSPO = """
log_ratio = batch.to_tokens(batch.sequence_mean(batch.log_ratio().detach()))
ratio, advantages = (log_ratio + batch.log_probs - batch.log_probs.detach()).exp(), batch.advantages
return PolicyLoss(-torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages))
"""
WHITEN = """
mean, std = batch.local_mean(batch.advantages), batch.local_std(batch.advantages)
advantages, ratio = (batch.advantages - mean) / (std + 1e-8), batch.ratio()
return PolicyLoss(-torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages))
"""
METRICS = CLIPPED + 'return PolicyLoss(per_token, {"KL mean!": per_token} | ({"x": Sum(ratio)} if batch.size else {}))'

FOURTEEN = {
    "ppo_tok": (loss(), set()),
    "ppo_seq": (loss(), set()),
    "ppo_local_mean": (
        loss(CLIPPED + "return PolicyLoss(per_token / batch.live.sum().clamp(min=1))"),
        {"RLX811", "RLX812", "RLX831"},
    ),
    "ppo_mult_mask": (loss(RATIO + SURROGATE + "return PolicyLoss(per_token * batch.live)"), {"RLX822", "RLX824"}),
    "ppo_where_late": (
        loss(RATIO + SURROGATE + "return PolicyLoss(torch.where(batch.live, per_token, 0.0))"),
        {"RLX822", "RLX824"},
    ),
    "ppo_bool_index": (
        loss("live = batch.live\nreturn PolicyLoss(-batch.ratio()[live] * batch.advantages[live])"),
        {"RLX802"},
    ),
    "cispo": (loss(CISPO, 'surrogate_gradient="the clipped ratio is a constant"'), set()),
    "gspo": (loss(GSPO, 'scope="sequence", surrogate_gradient="the mean is a constant"'), set()),
    "whiten_in_loss": (loss(WHITEN), {"RLX811", "RLX812", "RLX831", "RLX833"}),
    "inplace": (loss("batch.advantages.mul_(batch.live)\n" + GOOD), {"RLX843"}),
    "wrong_sign": (loss(CLIPPED + "return PolicyLoss(-per_token)"), {"RLX831"}),
    "item_sync": (
        loss("if batch.live.sum().item() == 0:\n    return PolicyLoss(torch.zeros_like(batch.log_probs))\n" + CLIPPED
             + "return PolicyLoss(per_token)"),
        {"RLX846"},
    ),
    "bad_metrics": (loss(METRICS), {"RLX861", "RLX862", "RLX863"}),
    "dropout_like": (loss(CLIPPED + "return PolicyLoss(per_token + 1e-3 * torch.rand(()))"), {"RLX841", "RLX842"}),
}  # fmt: skip
