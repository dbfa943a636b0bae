"""Messages behind a turn, as a chat template writes them."""

from __future__ import annotations

import pytest

from examples.tiny_model import byte_tokenizer
from relax_core.config import EnvironmentSection
from relax_core.environments.sampler import Sampler
from relax_core.environments.trajectory import EnvironmentPrompt, Limits, Trajectory
from relax_core.errors import RunError
from relax_core.rollout.types import Completion, SamplingParams

CHATML = (
    "{% for tool in tools or [] %}{{ tool.name }};{% endfor %}"
    "{% for each in messages %}{{ each.role }}{{ '(' + each.name + ')' if each.name else '' }}: "
    "{{ each.content | trim }}<eos>\n{% endfor %}assistant: "
)


def told(wrote, messages, template=CHATML, most=64):
    """The text of what stands behind a turn that is these token ids, and the trajectory."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    settings = EnvironmentSection(max_observation_tokens=most)
    sampler = Sampler(None, tokenizer, SamplingParams(1, 500), settings)
    trajectory = Trajectory(EnvironmentPrompt("row", "q", (1,), None, {}, Limits(9, 500)))
    ids = tokenizer.encode(wrote, add_special_tokens=False)
    trajectory._take(Completion(ids, [-1.0] * len(ids), "stop", [0] * len(ids)), wrote)
    sampler.tell(trajectory, messages)
    return tokenizer.decode(trajectory.token_ids[len(ids) :]), trajectory


def test_the_end_of_a_turn_is_there_once():
    message = {"role": "user", "content": " more "}
    assert told("hi<eos>", [message])[0] == "\nuser:  more <eos>\nassistant: "
    assert told("hi", [message])[0] == "<eos>\nuser:  more <eos>\nassistant: "


def test_what_a_tool_says_ends_no_turn_and_names_it():
    text, trajectory = told("hi<eos>", [{"role": "tool", "name": "find", "content": "a<eos>b"}])
    assert text == "\ntool(find): a<eos>b<eos>\nassistant: "
    eos = byte_tokenizer().eos_token_id
    assert trajectory.token_ids.count(eos) == 2, "the turn's own, and the message's"
    assert trajectory.observations == [(3, "find")]


def test_a_long_message_is_cut_and_the_template_around_it_is_not():
    messages = [{"role": "tool", "content": "x" * 1000}, {"role": "tool", "content": "ok"}]
    text, trajectory = told("hi<eos>", messages, most=5)
    assert text == "\ntool: xxxxx<eos>\ntool: ok<eos>\nassistant: "
    assert trajectory.counts["tool_truncated"] == 1


def test_a_template_that_hides_a_message_is_refused():
    with pytest.raises(
        RunError, match=r"does not write each message once, in order. Fix: give the observations as text"
    ):
        told("hi", [{"role": "user", "content": "x"}], "{{ messages[-1].content }}")
    with pytest.raises(RunError, match=r"the chat template refuses its messages: no tools here"):
        told("hi", [{"role": "user", "content": "x"}], "{{ raise_exception('no tools here') }}")


def test_a_conversation_is_written_with_its_tools():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHATML
    sampler = Sampler(None, tokenizer, SamplingParams(1, 9), EnvironmentSection())
    messages = [{"role": "user", "content": "hi"}]
    assert sampler.written(messages, [{"name": "find"}]) == "find;user: hi<eos>\nassistant: "
