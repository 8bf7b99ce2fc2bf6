"""Options that a node refuses are called out before anything is started."""

from __future__ import annotations

import pytest

from tests.config.files import engine, file_with, texts


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (engine(middleware="my.Module"), "middleware"),
        (engine(tool_parser_plugin="/srv/parser.py"), "tool-parser-plugin"),
        (engine(section={"extra_args": ["--worker-cls", "my.Worker"]}), "worker-cls"),
    ],
)
def test_a_guarded_option_is_a_warning(section: dict[str, object], name: str) -> None:
    (found,) = [text for text in texts(file_with(prefill=section)) if "[option-guarded]" in text]
    assert found.startswith("warning:") and f"nodes refuse --{name}: " in found and "allow_flags" in found


def test_others_are_not() -> None:
    section = engine(trust_remote_code=True, max_model_len=4096, section={"extra_args": ["--enforce-eager"]})
    assert not [text for text in texts(file_with(prefill=section)) if "[option-guarded]" in text]
