"""Sizes that the arithmetic of a run and its estimate share."""

CHUNK_LOGITS, CHUNK_TOKENS = 2**22, 128
"""A chunk of the head has so many logits, 16 MiB of float32, and at least so many tokens: fewer would not fill a product."""
KEPT_LOGITS = 2**24
"""Logits that a forward keeps for its backward, which computes the others again: 64 MiB of float32."""


def chunk_tokens(vocabulary: int) -> int:
    """Tokens in a chunk of the head, over so many ids, when no size is given."""
    return max(CHUNK_TOKENS, CHUNK_LOGITS // vocabulary)


def responses_per_row(prompt: int, response: float, group: int, width: int) -> int:
    """How many responses of a group are cheapest in one row.

    A layer costs about 24·width² operations a token and 4·width a pair of tokens of a row: a longer row saves prompts
    and wastes pairs.
    """

    def cost(count: int) -> float:
        length = prompt + count * response
        return (length + length * length / (6 * width)) / count

    return min(range(1, group + 1), key=cost)
