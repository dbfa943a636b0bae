"""The log of a run: one JSON object an event, beside what people read on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relax_core.errors import RelaxError, describe
from relax_core.orchestration.disk import writing
from relax_core.redaction import redacted, redacted_values

LOG = "log.jsonl"
LOGGER = logging.getLogger("relax")
LOGGER.setLevel(logging.INFO)
# stderr is written by hand, in words: no handler of another library may say an event once more.
LOGGER.propagate = False
LOGGER.addHandler(logging.NullHandler())


def say(event: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """An event of the run that goes on, with what belongs to it."""
    LOGGER.log(level, event, extra={"fields": fields})


def warn(message: str) -> None:
    """One line on stderr, and an event."""
    print(f"warning: {redacted(message)}", file=sys.stderr)
    say("warning", logging.WARNING, message=message)


@contextmanager
def logged(path: Path, run: str) -> Iterator[None]:
    """What is said inside is appended to the file `path` under the id `run`; an error that ends it is the last event."""
    with writing(path):
        handler = _Lines(path, encoding="utf-8")
    handler.setFormatter(_Json(run))
    LOGGER.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped", logging.WARNING, message="nothing was saved after the last checkpoint")
        raise
    except BaseException as error:
        say("failed", logging.ERROR, message=error.message if isinstance(error, RelaxError) else describe(error))
        raise
    finally:
        LOGGER.removeHandler(handler)
        with suppress(OSError):  # what could not be written before is tried once more
            handler.close()


class _Json(logging.Formatter):
    """`time` (UTC), `run`, `level`, `event`, then the event's own fields."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "run": self._run, "level": record.levelname.lower(), "event": record.getMessage()}
        fields = redacted_values(getattr(record, "fields", {}))
        return json.dumps(head | fields, ensure_ascii=False, default=str)


class _Lines(logging.FileHandler):
    """A log that cannot be written ends no run: it is said once, and nothing more is logged."""

    def handleError(self, record: logging.LogRecord) -> None:
        LOGGER.removeHandler(self)
        warn(f"'{self.baseFilename}' cannot be written: {sys.exception()}; the run goes on without its log")
