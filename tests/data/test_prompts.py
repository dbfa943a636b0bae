"""Prompts: rows from files, tasks and functions, tokens, and the batch of each step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from relax_core.config import DataSection
from relax_core.data.examples import Example, load_examples
from relax_core.data.prompts import PromptSource
from relax_core.errors import LoadError, UsageError

ROWS = [{"id": "a", "prompt": "1+1", "answer": "2", "level": 3}, {"prompt": "2+2", "answer": "4"}]
CHAT = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, a `<s>` before plain text, no chat template."""
    tokens = ("<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()))
    inner = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


@pytest.fixture
def chat_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write(path: Path, text: str) -> DataSection:
    path.write_text(text)
    return DataSection(path=path.name)


def lines(rows: list) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def failure(data: DataSection, base: Path, kind: type = LoadError) -> str:
    with pytest.raises(kind) as caught:
        load_examples(data, base)
    return caught.value.message


def source(count: int, tokenizer: PreTrainedTokenizerFast, seed: int = 0, **data: object) -> PromptSource:
    examples = [Example(str(number), f"{number}", None, {}) for number in range(count)]
    return PromptSource(examples, tokenizer, DataSection(**data), seed, None)


def one(prompt: object, tokenizer: PreTrainedTokenizerFast, **data: object) -> tuple[str, list[int]]:
    [made] = PromptSource([Example("e", prompt, None, {})], tokenizer, DataSection(**data), 0, None).prompts
    return made.text, made.token_ids


def refusal(prompt: object, tokenizer: PreTrainedTokenizerFast, **data: object) -> str:
    with pytest.raises(LoadError) as caught:
        one(prompt, tokenizer, **data)
    return caught.value.message


# Rows


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_lines(tmp_path: Path, suffix: str) -> None:
    data = write(tmp_path / f"data{suffix}", lines(ROWS) + "\n")
    assert load_examples(data, tmp_path) == [Example("a", "1+1", "2", {"level": 3}), Example("1", "2+2", "4", {})]


def test_parquet_with_messages(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist([{"prompt": CHAT, "answer": 3, "kind": "x"}])
    parquet.write_table(table, tmp_path / "data.parquet")
    assert load_examples(DataSection(path="data.parquet"), tmp_path) == [Example("0", CHAT, 3, {"kind": "x"})]


def test_a_file_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "data.jsonl", lines(ROWS))
    monkeypatch.chdir(tmp_path)
    assert len(load_examples(data, tmp_path / "elsewhere")) == 2


def test_other_keys(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", lines([{"question": "q", "solution": "s", "answer": "other"}]))
    data = DataSection(path="data.jsonl", prompt_key="question", answer_key="solution")
    assert load_examples(data, tmp_path) == [Example("0", "q", "s", {"answer": "other"})]


def test_a_source_gives_rows_or_examples(tmp_path: Path) -> None:
    text = "from relax_core.data.examples import Example\n"
    text += "def rows(n):\n    yield {'prompt': 'p' * n}\n    yield Example('x', 'q', 1, {})\n"
    (tmp_path / "rows.py").write_text(text)
    data = DataSection(source="rows.py:rows", source_args={"n": 2})
    assert load_examples(data, tmp_path) == [Example("0", "pp", None, {}), Example("x", "q", 1, {})]


def test_a_task_carries_what_its_scorer_needs(tmp_path: Path) -> None:
    args = {"size": 3, "seed": 7}
    examples = load_examples(DataSection(task="leg_counting", task_args=args), tmp_path)
    assert [example.id for example in examples] == ["leg_counting-0", "leg_counting-1", "leg_counting-2"]
    entry = examples[2].metadata["entry"]
    assert (entry["question"], entry["answer"]) == (examples[2].prompt, examples[2].answer)
    assert (examples[2].metadata["task"], examples[2].metadata["task_args"]) == ("leg_counting", args)


# Rows that cannot be used


@pytest.mark.parametrize(("data", "named"), [({}, "none"), ({"path": "x", "task": "y"}, "path and task")])
def test_exactly_one_origin(data: dict, named: str, tmp_path: Path) -> None:
    assert failure(DataSection(**data), tmp_path, UsageError) == (
        f"data: exactly one of path, task and source says where prompts come from, not {named}. "
        "Fix: set one of data.path, data.task and data.source"
    )


def test_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert failure(DataSection(path="no.jsonl"), tmp_path, UsageError) == (
        f"data.path: there is no file no.jsonl in {tmp_path}. Fix: correct the path"
    )


def test_a_file_of_rows_is_no_function(tmp_path: Path) -> None:
    assert failure(DataSection(source="rows.jsonl"), tmp_path) == (
        "data.source: 'rows.jsonl' is a file of rows, not a function. Fix: write it as data.path"
    )


def test_an_unknown_suffix(tmp_path: Path) -> None:
    assert failure(write(tmp_path / "data.csv", "a,b"), tmp_path) == (
        "data.path: the suffix of data.csv is unknown. "
        "Fix: convert it to .jsonl (one JSON object a line), .json of that form, or .parquet"
    )


def test_a_line_that_is_not_json(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", lines(ROWS) + '{"prompt": }\n')
    assert failure(data, tmp_path) == (
        f"{tmp_path / 'data.jsonl'}:3: this line is not JSON: Expecting value at column 12. "
        "Fix: write one JSON object a line"
    )


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    text = failure(DataSection(path="data.jsonl"), tmp_path)
    assert text.startswith("data.path: data.jsonl is not UTF-8 text: ")


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    text = failure(write(tmp_path / "data.parquet", "not parquet"), tmp_path)
    assert text.startswith("data.path: data.parquet is no parquet file: ")


def test_a_row_without_the_prompt(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", lines([ROWS[0], {"promt": "x", "answer": 1}]))
    assert failure(data, tmp_path) == (
        "data.path data.jsonl: row 2 has no key 'prompt', only promt, answer. "
        "Fix: did you mean 'promt'? Set data.prompt_key to the right one"
    )


def test_an_answer_key_that_was_set_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", lines(ROWS))
    assert failure(DataSection(path="data.jsonl", answer_key="gold"), tmp_path) == (
        "data.path data.jsonl: row 1 has no key 'gold', only id, prompt, answer, level. "
        "Fix: Set data.answer_key to the right one"
    )


def test_a_row_that_is_no_object(tmp_path: Path) -> None:
    text = failure(write(tmp_path / "data.jsonl", "[1]\n"), tmp_path)
    assert text == (
        "data.path data.jsonl: row 1 is a list, not an object with the key 'prompt'. Fix: give each row as an object"
    )


@pytest.mark.parametrize("prompt", [3, [], ["hi"], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_a_prompt_that_is_neither_text_nor_messages(tmp_path: Path, prompt: object) -> None:
    text = failure(write(tmp_path / "data.jsonl", lines([{"prompt": prompt}])), tmp_path)
    assert text == (
        "data.path data.jsonl: row 1: 'prompt' is neither text nor a list of messages. "
        'Fix: write text, or messages like {"role": "user", "content": "..."}'
    )


def test_no_examples(tmp_path: Path) -> None:
    text = failure(write(tmp_path / "data.jsonl", "\n"), tmp_path)
    assert text == "data.path data.jsonl: there is not a single example. Fix: name data that has some"


def test_an_unknown_task(tmp_path: Path) -> None:
    assert failure(DataSection(task="leg_countin"), tmp_path) == (
        "data.task: reasoning-gym has no task 'leg_countin'. Fix: did you mean 'leg_counting'?"
    )


@pytest.mark.parametrize("args", [{"sizes": 3}, {"size": 3, "min_animals": -1}])
def test_arguments_that_the_task_does_not_take(tmp_path: Path, args: dict) -> None:
    text = failure(DataSection(task="leg_counting", task_args=args), tmp_path)
    assert text.startswith("data.task_args: 'leg_counting' does not take these: ")
    assert text.endswith("Fix: correct the arguments; they are the fields of LegCountingConfig")


def test_tasks_without_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert failure(DataSection(task="leg_counting"), tmp_path) == (
        "data.task: the task 'leg_counting' needs the package reasoning-gym, which is not installed. "
        "Fix: install with pip install 'relax-rl[tasks]'"
    )


def test_a_source_that_raises(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("def rows():\n    raise OSError('disk full')\n")
    assert failure(DataSection(source="rows.py:rows"), tmp_path) == (
        "data.source: 'rows.py:rows' raised OSError: disk full. Fix: correct the function or data.source_args"
    )


def test_a_source_that_says_itself_what_is_wrong_is_quoted_as_it_is(tmp_path: Path) -> None:
    lines = ["from relax_core.errors import LoadError", "def rows():"]
    lines += ["    raise LoadError('no rows today', who='rows.py', fix='come back tomorrow')"]
    (tmp_path / "rows.py").write_text("\n".join(lines))
    assert failure(DataSection(source="rows.py:rows"), tmp_path) == "rows.py: no rows today. Fix: come back tomorrow"


# Tokens


def test_text_without_a_template(tokenizer: PreTrainedTokenizerFast) -> None:
    text, token_ids = one("héy", tokenizer)
    assert (text, tokenizer.decode(token_ids)) == ("héy", "<s>héy")


def test_text_takes_the_template_where_there_is_one(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    text, token_ids = one("hi", chat_tokenizer)
    assert text == chat_tokenizer.decode(token_ids) == "[user]hi\n[bot]"


def test_the_template_can_be_switched_off(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    assert one("hi", chat_tokenizer, chat_template=False)[0] == "hi"


def test_messages_with_a_system_prompt(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    assert one(CHAT, chat_tokenizer, system_prompt="be brief")[0] == "[system]be brief\n[user]hi\n[bot]"


def test_a_system_message_of_the_row_stays(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "system", "content": "own"}, *CHAT]
    assert one(messages, chat_tokenizer, system_prompt="be brief")[0] == "[system]own\n[user]hi\n[bot]"
    assert len(messages) == 2


@pytest.mark.parametrize(
    ("prompt", "data"), [(CHAT, {}), ("hi", {"chat_template": True}), ("hi", {"system_prompt": "s"})]
)
def test_a_tokenizer_without_a_template_that_is_needed(
    prompt: object, data: dict, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert refusal(prompt, tokenizer, **data) == (
        "example e: the tokenizer has no chat template, which this prompt needs. Fix: use a model whose tokenizer "
        "has one, or give prompts as text, without data.chat_template and data.system_prompt"
    )


@pytest.mark.parametrize(
    ("prompt", "data", "what"), [(CHAT, {}, "messages"), ("hi", {"system_prompt": "s"}, "a system prompt")]
)
def test_what_needs_the_template_that_is_off(
    prompt: object, data: dict, what: str, chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    assert refusal(prompt, chat_tokenizer, chat_template=False, **data) == (
        f"example e: {what} cannot be written without the chat template. "
        "Fix: leave data.chat_template out, or give prompts as text and no data.system_prompt"
    )


def test_a_template_that_refuses(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    chat_tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    assert refusal(CHAT, chat_tokenizer) == (
        "example e: the chat template refuses its messages: no system role. "
        "Fix: correct the messages or data.system_prompt"
    )


def test_a_prompt_without_tokens(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    chat_tokenizer.chat_template = "{{ '' }}"
    assert refusal(CHAT, chat_tokenizer) == "example e: the prompt has no tokens. Fix: take it out of the data"


@pytest.mark.parametrize(("model_limit", "own_limit"), [(5, None), (None, 5), (5, 9), (9, 5)])
def test_a_prompt_that_is_too_long(
    tokenizer: PreTrainedTokenizerFast, model_limit: int | None, own_limit: int | None
) -> None:
    examples = [Example(text, text, None, {}) for text in ("1234", "12345", "123456")]
    with pytest.raises(LoadError) as caught:
        PromptSource(examples, tokenizer, DataSection(max_prompt_tokens=own_limit), 0, model_limit)
    assert caught.value.message == (
        "example 12345: the prompt has 6 tokens, more than the limit of 5 (1 more is too long). "
        "Fix: raise data.max_prompt_tokens, lower rollout.max_new_tokens, or take it out of the data"
    )


# Batches


def ids(prompts: PromptSource, step: int, size: int) -> list[int]:
    return [int(prompt.example.id) for prompt in prompts.take(step * size, size)]


def test_an_epoch_holds_every_prompt_once_and_the_next_has_another_order(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = source(10, tokenizer)
    drawn = [number for step in range(10) for number in ids(prompts, step, 3)]
    epochs = [drawn[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_batch_depends_on_seed_and_step_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    first, again, other = (source(10, tokenizer, seed) for seed in (1, 1, 2))
    steps = [ids(first, step, 4) for step in range(6)]
    assert [ids(again, step, 4) for step in reversed(range(6))] == steps[::-1]
    assert [ids(other, step, 4) for step in range(6)] != steps


def test_the_order_stays_what_it_was_when_a_run_was_written(tokenizer: PreTrainedTokenizerFast) -> None:
    assert ids(source(6, tokenizer, 5), 0, 6) == [2, 0, 4, 1, 3, 5]


def test_a_batch_larger_than_the_data_goes_on_into_the_next_epochs(tokenizer: PreTrainedTokenizerFast) -> None:
    drawn = ids(source(3, tokenizer), 0, 7)
    assert sorted(drawn[:3]) == sorted(drawn[3:6]) == [0, 1, 2]


def test_without_shuffling_the_order_is_that_of_the_data(tokenizer: PreTrainedTokenizerFast) -> None:
    assert ids(source(4, tokenizer, shuffle=False), 1, 3) == [3, 0, 1]
