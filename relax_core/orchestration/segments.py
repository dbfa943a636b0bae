"""A response as the parts that the policy wrote and those that it was shown, token by token, for whoever reads along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from relax_core.redaction import redacted

LONGEST = 4
"""Bytes of a character: no more tokens than that make one."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for bytes that are no character, or not yet."""


def segments_of(
    token_ids: Sequence[int],
    policy: Sequence[bool],
    mask: Sequence[bool],
    advantages: Sequence[float] | None,
    tokenizer: Any,
) -> list[dict[str, Any]]:
    """The segments of a response, one after another: a list entry a token in each of their lists.

    `policy`: the policy wrote the token; `mask`: the final one. A response in which a secret of the environment stands
    has none: between its tokens nothing would see the secret.
    """
    texts = texts_of(token_ids, tokenizer)
    whole = "".join(texts)
    if redacted(whole) != whole:
        return []
    segments = []
    for written, places in groupby(range(len(texts)), key=lambda place: bool(policy[place])):
        here = list(places)
        segments.append(
            {
                "kind": "policy" if written else "observation",
                "tool": None,
                "tokens": [texts[place] for place in here],
                "mask": [int(mask[place]) for place in here],
                "advantages": None if advantages is None else [float(f"{advantages[place]:.6g}") for place in here],
            }
        )
    return segments


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
