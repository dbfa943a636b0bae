"""Calls of tools in what a policy writes, in the form that most open models are taught.

<tool_call>
{"name": "add", "arguments": {"a": 3, "b": 4}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from typing import Any

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def tool_calls(text: str, turn: int) -> tuple[str, list[dict[str, Any]]]:
    """What stands beside the calls, and the calls as OpenAI's interface has them; `turn` makes their ids unique.

    What is no call has its whole text for arguments and no name, so that the policy is told what is wrong with it.
    """
    found = [_call(body.strip(), f"call-{turn}-{number}") for number, body in enumerate(CALL.findall(text))]
    return CALL.sub("", text).strip() if found else text, found


def _call(body: str, identity: str) -> dict[str, Any]:
    name, arguments = "", body
    try:
        read = json.loads(body)
        name, arguments = str(read["name"]), json.dumps(read.get("arguments", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
