"""Where an MCP server is and with which credentials: what the configuration says, what a request may add, what is refused and hidden."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator_svc.settings import McpServerSettings, Settings
from orchestrator_svc.tools.base import McpServer, ToolFailed
from orchestrator_svc.tools.mcp_endpoint import Endpoint, Endpoints
from svckit.settings import SettingsError, load

URL = "https://mcp.example.com/mcp"


def endpoint(server: McpServer, **configured: McpServerSettings) -> Endpoint:
    return Endpoints(configured, {"TOKEN": "token-of-the-server", "PLACE": "/data/projects"}).of(server)


@pytest.mark.parametrize(
    ("authorization", "sent"),
    [("abc", "Bearer abc"), ("Bearer abc", "Bearer abc"), ("Basic dXNlcg==", "Basic dXNlcg=="), (" abc ", "Bearer abc")],
)
def test_an_authorization_is_a_bearer_token_unless_it_says_otherwise(authorization: str, sent: str) -> None:
    assert endpoint(McpServer("s", URL, authorization=authorization)).headers == {"authorization": sent}


def test_what_the_protocol_sets_itself_is_left_to_it() -> None:
    given = {"Accept": "text/html", "Content-Type": "text/plain", "X-Own": " own "}
    assert endpoint(McpServer("s", URL, given)).headers == {"x-own": "own"}


@pytest.mark.parametrize("name", ["Host", "Transfer-Encoding", "Connection", "Mcp-Session-Id", "bad name", "", "n\u00e4me"])
def test_a_header_that_would_reach_beyond_the_message_is_refused(name: str) -> None:
    with pytest.raises(ToolFailed):
        endpoint(McpServer("s", URL, {name: "value"}))


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\x00", "\u00e9", "x" * 20_000])
def test_a_value_that_no_header_can_carry_is_refused_without_being_named(value: str) -> None:
    with pytest.raises(ToolFailed) as refused:
        endpoint(McpServer("s", URL, {"X-Own": value}))
    assert value not in str(refused.value)


def test_a_url_of_a_request_is_guarded_and_a_configured_one_is_not() -> None:
    assert endpoint(McpServer("s", URL)).guarded
    assert not endpoint(McpServer("s"), s=McpServerSettings(url=URL)).guarded


def test_a_request_cannot_reach_a_command_by_a_url_nor_by_a_label_that_is_not_configured() -> None:
    known = McpServerSettings(command="server")
    assert endpoint(McpServer("known", "server"), known=known).command == ""
    with pytest.raises(ToolFailed):
        endpoint(McpServer("unknown"), known=known)


def test_what_the_configuration_sends_cannot_be_overridden() -> None:
    configured = McpServerSettings(url=URL, headers={"X-Tenant": "ours"}, authorization_env="TOKEN")
    given = McpServer("s", None, {"x-tenant": "theirs", "X-More": "more"}, authorization="mine")
    assert endpoint(given, s=configured).headers == {"authorization": "Bearer token-of-the-server", "x-tenant": "ours", "x-more": "more"}


def test_a_command_gets_the_variables_that_are_named_and_no_others() -> None:
    command = endpoint(McpServer("s"), s=McpServerSettings(command="server", args=("--fast",), env=("TOKEN",)))
    assert (command.transports, command.args, dict(command.environment)) == (("stdio",), ("--fast",), {"TOKEN": "token-of-the-server"})


def test_credentials_for_a_command_are_refused_not_ignored() -> None:
    with pytest.raises(ToolFailed):
        endpoint(McpServer("s", authorization="token"), s=McpServerSettings(command="server"))


def test_sessions_are_shared_by_equal_credentials_only() -> None:
    keys = {
        endpoint(McpServer(label, url, headers, authorization)).key
        for label, url, headers, authorization in [
            ("a", URL, {}, ""),
            ("b", URL, {}, ""),
            ("a", URL, {}, "one"),
            ("a", URL, {"Authorization": "Bearer one"}, ""),
            ("a", URL, {"X": "1"}, "one"),
            ("a", URL + "/", {}, "one"),
        ]
    }
    assert len(keys) == 4


def test_no_secret_stands_in_a_key_or_in_a_repr() -> None:
    one = endpoint(McpServer("s", URL, {"X-Key": "secret-key"}, authorization="secret-token"))
    configured = McpServerSettings(url=URL, headers={"X-Key": "secret-key"})
    for shown in (one.key, repr(one), repr(configured), repr(Settings(mcp_servers={"s": configured}))):
        assert "secret-key" not in shown
        assert "secret-token" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no token-abc here", "no [redacted] here"),
        ("Bearer token-abc", "[redacted]"),
        ("the key is long-enough", "the key is [redacted]"),
        ("short", "short"),
    ],
)
def test_credentials_are_taken_out_of_what_a_server_says(text: str, shown: str) -> None:
    headers = {"X-Key": "long-enough", "X-Flag": "short"}
    assert endpoint(McpServer("s", URL, headers, authorization="token-abc")).redacted(text) == shown


def test_of_a_commands_variables_only_those_that_look_secret_are_taken_out() -> None:
    command = endpoint(McpServer("s"), s=McpServerSettings(command="server", env=("TOKEN", "PLACE")))
    assert command.redacted("token-of-the-server in /data/projects") == "[redacted] in /data/projects"


# Configuration.


@pytest.mark.parametrize(
    "server",
    [McpServerSettings(url=URL, authorization_env="MISSING"), McpServerSettings(command="x", env=("MISSING",))],
)
def test_a_variable_that_is_named_and_not_set_is_a_settings_error(server: McpServerSettings) -> None:
    with pytest.raises(SettingsError, match=r"mcp_servers\.s"):
        endpoint(McpServer("s"), s=server)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ('url = "http://127.0.0.1/mcp"\ncommand = "x"', "mcp_servers.s"),
        ("", "mcp_servers.s"),
        ('url = "http://127.0.0.1/mcp"\nunknown = 1', "mcp_servers.s"),
        ('url = "http://127.0.0.1/mcp"\nargs = ["x"]', "mcp_servers.s"),
        ('command = "x"\nauthorization_env = "TOKEN"', "mcp_servers.s"),
        ('url = "file:///mcp"', "mcp_servers.s"),
        ('url = "http://127.0.0.1/mcp"\ntransport = "pigeon"', "mcp_servers.s.transport"),
    ],
)
def test_a_server_that_is_configured_wrongly_is_refused_by_its_name(tmp_path: Path, section: str, key: str) -> None:
    file = tmp_path / "turnkeep.toml"
    file.write_text(f"[mcp_servers.s]\n{section}\n")
    with pytest.raises(SettingsError) as refused:
        load(Settings, file=file)
    assert refused.value.key == key


def test_servers_stand_alone_in_a_file_and_beside_variables_of_the_section_mcp(tmp_path: Path) -> None:
    file = tmp_path / "turnkeep.toml"
    file.write_text('[mcp_servers.one]\nurl = "http://10.0.0.1/mcp"\n[mcp_servers.two-2]\ncommand = "server"\nargs = ["--fast"]\n')
    settings = load(Settings, file=file, environ={"TURNKEEP_MCP_MAX_SESSIONS": "7"})
    assert settings.mcp.max_sessions == 7
    assert settings.mcp_servers == {
        "one": McpServerSettings(url="http://10.0.0.1/mcp"),
        "two-2": McpServerSettings(command="server", args=("--fast",)),
    }


def test_a_command_cannot_come_from_the_environment() -> None:
    with pytest.raises(SettingsError):
        load(Settings, environ={"TURNKEEP_MCP_SERVERS_EVIL": '{"command": "sh"}'})


def test_the_sdk_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, orchestrator_svc.app, orchestrator_svc.tools.mcp; sys.exit(bool({'mcp', 'httpx2', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3]).returncode == 0
