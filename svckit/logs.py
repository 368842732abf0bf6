"""Structured logs: one line per event on stderr, as JSON or for people.

Ids of the request are bound once at the door with `structlog.contextvars`; secrets are masked by the name of their key. What other
libraries log through `logging` comes out in the same form.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import cast

import structlog
from structlog.types import Processor
from structlog.typing import FilteringBoundLogger

MASK = "***"

_SECRET = re.compile(
    r"(?:.*[_-])?(?:authorization|api[_-]?keys?|token|password|secret|cookie|dsn|database_url|listen_url)\Z", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_IN_TRACEBACK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure(level: str, format: str) -> None:
    """Sets up logging for this process; `level` is `debug` to `error`, `format` is `json` or `console`."""
    minimum = logging.getLevelNamesMapping()[level.upper()]
    ending: list[Processor] = _for_people() if format == "console" else [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*_common(), *ending],
        wrapper_class=structlog.make_filtering_bound_logger(minimum),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(max(minimum, logging.WARNING), ending)


def get_logger(name: str) -> FilteringBoundLogger:
    """The logger of one module: `log.info("event in words", key=value)`."""
    return cast("FilteringBoundLogger", structlog.get_logger(module=name))


def _common() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_secrets,
    ]


def _for_people() -> list[Processor]:
    return [escape_controls, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _route_standard_logging(level: int, ending: list[Processor]) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_common(), structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def mask_secrets(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """A structlog processor: values of secret keys, at any depth, and passwords in URLs do not leave the process."""
    for key, value in event.items():
        event[key] = _masked(key, value)
    return event


def _masked(key: str, value: object) -> object:
    if _SECRET.match(key):
        return MASK
    if isinstance(value, str):
        return _URL_PASSWORD.sub(rf"\1:{MASK}@", value)
    if isinstance(value, Mapping):
        return {str(inner): _masked(str(inner), one) for inner, one in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", one) for one in value]
    return value


def escape_controls(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """A structlog processor: no value can write a line of its own or drive the terminal (JSON escapes by itself)."""
    for key, value in event.items():
        if isinstance(value, str):
            pattern = _CONTROL_IN_TRACEBACK if key == "exception" else _CONTROL
            event[key] = pattern.sub(lambda found: ascii(found[0])[1:-1], value)
    return event
