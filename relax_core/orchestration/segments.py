"""A response as what the policy wrote, what it was shown, and what its context was replaced by, for whoever reads along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

from relax_core.redaction import redacted
from relax_core.rollout.types import Completion

LONGEST = 4
"""Bytes of a character: no more tokens than that make one."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for bytes that are no character, or not yet."""


def segments_of(
    completion: Completion, mask: Sequence[bool], advantages: Sequence[float] | None, tokenizer: Any
) -> list[dict[str, Any]]:
    """The segments of a response, one after another: a list entry a token in each of their lists.

    `mask` is the final one. A response in which a secret of the environment stands has none: between its tokens nothing
    would see the secret.
    """
    texts = texts_of(completion.token_ids, tokenizer)
    contexts = {place: texts_of(ids, tokenizer) for place, ids in completion.resets}
    if any(redacted(whole) != whole for whole in map("".join, [texts, *contexts.values()])):
        return []
    policy = completion.raw_mask or [True] * len(texts)
    tools, segments = dict(completion.observations), []
    for here in _runs(policy, {*contexts, *tools}):
        if here[0] in contexts:
            shown = contexts[here[0]]
            segments.append(_segment("context", None, shown, [0] * len(shown), None))
        kind, tool = ("policy", None) if policy[here[0]] else ("observation", tools.get(here[0]) or None)
        values = None if advantages is None else [float(f"{advantages[place]:.6g}") for place in here]
        segments.append(_segment(kind, tool, [texts[i] for i in here], [int(mask[i]) for i in here], values))
    return segments


def _runs(policy: Sequence[bool], beginnings: Set[int]) -> list[list[int]]:
    """Places that belong together: all of the policy, or all of an observation; at each of `beginnings` another begins."""
    runs: list[list[int]] = []
    for place, written in enumerate(policy):
        if place == 0 or place in beginnings or bool(written) != bool(policy[place - 1]):
            runs.append([])
        runs[-1].append(place)
    return runs


def _segment(
    kind: str, tool: str | None, tokens: list[str], mask: list[int], advantages: list[float] | None
) -> dict[str, Any]:
    return {"kind": kind, "tool": tool, "tokens": tokens, "mask": mask, "advantages": advantages}


def texts_of(token_ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token, special ones too; joined they are the text of all.

    Of tokens that make a character together the first has it, and the others are empty.
    """
    alone = {token: _decode([token], tokenizer) for token in set(token_ids)}
    texts = [alone[token] for token in token_ids]
    if not any(UNKNOWN in text for text in alone.values()) and "".join(texts) == _decode(token_ids, tokenizer):
        return texts
    return list(_in_context(token_ids, tokenizer))


def _in_context(token_ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """Each token behind those before it: alone it may lack a space, or be a part of a character."""
    before = begin = 0
    for end in range(1, len(token_ids) + 1):
        text = _decode(token_ids[before:end], tokenizer)
        # A character ends here where what follows leaves the text as it is.
        if _decode(token_ids[before : end + LONGEST - 1], tokenizer).startswith(text):
            mine = text[len(_decode(token_ids[before:begin], tokenizer)) :]
            yield from [mine, *[""] * (end - begin - 1)]
            # Bytes that are no character are counted together: only behind a whole one can the text begin anew.
            before, begin = (begin if mine and UNKNOWN not in mine else before), end


def _decode(token_ids: Sequence[int], tokenizer: Any) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
