"""The step as plainly as PyTorch has it, without a framework: python bare_loop.py MODEL_DIR THREADS [entropy]."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import task
import torch
import turns
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache


class Loop:
    """Generate, reward, one GRPO update with the sampler's log-probs as the old ones."""

    def __init__(self, directory: Path, has_entropy: bool) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=task.LEARNING_RATE, weight_decay=0.0)
        self.has_entropy = has_entropy
        rows = [json.loads(line) for line in (directory / "prompts.jsonl").read_text().splitlines()]
        self.prompts = self.tokenizer([row["prompt"] for row in rows], return_tensors="pt").input_ids
        self.eos = self.tokenizer.eos_token_id

    def step(self) -> dict[str, float]:
        started = time.perf_counter()
        prompts = self.prompts.repeat_interleave(task.SAMPLES, dim=0)
        with torch.no_grad():
            tokens, mask = self.generate(prompts)
        texts = self.tokenizer.batch_decode(
            [ids[keep] for ids, keep in zip(tokens, mask, strict=True)], skip_special_tokens=True
        )
        rewards = torch.tensor([task.reward(each) for each in texts])
        sampled = time.perf_counter()
        self.train(prompts, tokens, mask, rewards)
        return {"generate": sampled - started, "train": time.perf_counter() - sampled}

    def generate(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """[R, T] tokens, and which of them are up to the end of their response."""
        cache, given, tokens = DynamicCache(config=self.model.config), prompts, []
        ended, mask = torch.zeros(len(prompts), dtype=torch.bool), []
        for _ in range(task.NEW_TOKENS):
            logits = self.model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            mass = logits.softmax(-1).cumsum(-1)
            drawn = torch.rand(len(prompts), 1) * mass[:, -1:]
            given = torch.searchsorted(mass, drawn, right=True).clamp(max=logits.shape[-1] - 1)
            tokens.append(given[:, 0])
            mask.append(~ended)
            ended = ended | (given[:, 0] == self.eos)
            if ended.all():
                break
        return torch.stack(tokens, 1), torch.stack(mask, 1)

    def train(self, prompts: Tensor, tokens: Tensor, mask: Tensor, rewards: Tensor) -> None:
        groups = rewards.view(-1, task.SAMPLES)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        hidden = self.model.base_model(input_ids=torch.cat([prompts, tokens], 1), use_cache=False).last_hidden_state
        states = hidden[:, prompts.shape[1] - 1 : -1]
        every = self.model.lm_head(states).log_softmax(-1)
        log_probs = every.gather(-1, tokens[..., None])[..., 0]
        ratio = (log_probs - log_probs.detach()).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        if self.has_entropy:
            loss = loss + 1e-3 * (every.exp() * every).sum(-1)
        self.optimizer.zero_grad()
        ((loss * mask).sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    turns.serve(Loop(Path(sys.argv[1]), "entropy" in sys.argv).step)
