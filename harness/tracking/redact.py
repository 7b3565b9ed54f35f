"""Keeps secrets out of what a tracker sends: by the key's name, by the values of secret variables, and in URLs."""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
SECRET_NAME = re.compile(r"(?i)(^|[_.-])(api_?key|key|token|secret|passwd|password|credentials?|authorization)$")
USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def redact(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """A copy of plain JSON-able data without secrets.

    Hidden are: strings under a key named like a secret (`api_key`, `hf_token`, ..., but not `max_new_tokens`), the
    value of any environment variable so named wherever it stands in a string, and the user part of a URL.
    """
    secrets = [v for name, v in environment.items() if SECRET_NAME.search(name) and len(v) >= 8]
    return _redact(value, secrets)


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(inner, str) and SECRET_NAME.search(str(key)) else _redact(inner, secrets)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_redact(inner, secrets) for inner in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return USER_INFO.sub(HIDDEN, value)
    return value
