"""Keys of a cluster file are the options of the commands, and become words of a command line."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
from pydantic import ValidationError

from farflung.cli.main import app
from farflung.job.section import Section
from farflung.launchers.member_options import BrokerOptions, JoinOptions

#: What a provider decides, or what makes no sense for a process that it starts.
NOT_KEYS = {"broker": {"home", "valid", "service", "user", "no-tickets", "standby"}, "join": {"name", "service", "user"}}


@pytest.mark.parametrize(("command", "keys"), [("broker", BrokerOptions), ("join", JoinOptions)])
def test_each_option_is_a_key(command: str, keys: type[Section]) -> None:
    group: Any = typer.main.get_command(app)
    options = [max(one.opts, key=len) for one in group.get_command(None, command).params]
    names = {option.removeprefix("--") for option in options if option.startswith("--")}
    assert {key.replace("_", "-") for key in keys.model_fields} == names - NOT_KEYS[command] - {"help"}


def test_flags_and_values_become_words() -> None:
    options = JoinOptions(device="cuda:{slot}", no_relay=True, memory="8 GB")
    assert options.words(3) == ["--device", "cuda:3", "--memory", "8 GB", "--no-relay"]
    assert BrokerOptions(queue_limit=5, no_web=True).words() == ["--queue-limit", "5", "--no-web"]


def test_a_host_overrides_the_defaults() -> None:
    chosen = JoinOptions(device="cpu", unreliable=False).over(JoinOptions(device="cuda", memory="1 GB", unreliable=True))
    assert chosen.words() == ["--device", "cpu", "--memory", "1 GB"]


@pytest.mark.parametrize("values", [{"memory": "8"}, {"bandwidth": "20"}, {"disk": "20"}, {"peak": "5"}])
def test_sizes_and_rates_need_a_unit(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="needs a unit, got"):
        JoinOptions.model_validate(values)
