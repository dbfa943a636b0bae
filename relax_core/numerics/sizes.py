"""Sizes that the arithmetic of a run and its estimate share."""

CHUNK_LOGITS = 2**26
"""Logits in a chunk of the head when no chunk size is given: 256 MiB of float32."""


def responses_per_row(prompt: int, response: float, group: int, width: int) -> int:
    """How many responses of a group are cheapest in one row.

    A layer costs about 24·width² operations a token and 4·width a pair of tokens of a row: a longer row saves prompts
    and wastes pairs.
    """

    def cost(count: int) -> float:
        length = prompt + count * response
        return (length + length * length / (6 * width)) / count

    return min(range(1, group + 1), key=cost)
