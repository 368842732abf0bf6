"""The tool table: names, collisions, what the engine is offered, who may be called, and what a tool choice becomes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools import web_search
from orchestrator_svc.tools.base import ListedTool, Tool
from orchestrator_svc.tools.names import flat_name
from orchestrator_svc.tools.table import ToolTable, declared_by_items, read_tools
from svckit.errors import ServiceError
from tests.orchestrator_svc.turns import HELLO, request

SPECS = dict.fromkeys(web_search.SPEC.kinds, web_search.SPEC)
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
GRAMMAR: JsonObject = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" NUMBER'}
NAMES = st.text(alphabet="abcdefghij_-. é😀", min_size=1, max_size=128)


def function(name: str, **more: object) -> JsonObject:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **more}


def custom(name: str, **more: object) -> JsonObject:
    return {"type": "custom", "name": name, **more}


def namespace(name: str, *tools: JsonObject) -> JsonObject:
    return {"type": "namespace", "name": name, "description": "Some.", "tools": list(tools)}


def mcp(label: str = "docs", **more: object) -> JsonObject:
    return {"type": "mcp", "server_label": label, "server_url": "https://docs.example/mcp", **more}


def table(*tools: JsonObject, servers: frozenset[str] = frozenset()) -> ToolTable:
    return read_tools(tools, SPECS, servers)


def with_server(tool: JsonObject, *listed: ListedTool) -> ToolTable:
    read = table(tool)
    return read.with_listed(read.mcp[0], listed)


def a_listed(name: str, *, read_only: bool | None = None) -> ListedTool:
    return ListedTool(name, {"type": "object"}, annotations=None if read_only is None else {"readOnlyHint": read_only})


def found(read: ToolTable, flat: str) -> Tool:
    tool = read.find(flat)
    assert tool is not None
    return tool


def refusal(*tools: JsonObject, **fields: object) -> tuple[type[ServiceError], str | None]:
    with pytest.raises(ServiceError) as refused:
        request(HELLO, tools=list(tools), **fields)
    return type(refused.value), refused.value.param


# Names.


@pytest.mark.parametrize("length", [1, 63, 64, 65, 70, 128])
def test_names_of_any_length_are_legal_and_the_client_keeps_its_own(length: int) -> None:
    """B080."""
    name = "n" * length
    (declared,) = table(function(name)).declarations()
    assert LEGAL.match(str(declared["name"]))
    assert (declared["name"] == name) is (length <= 64)
    assert found(table(function(name)), str(declared["name"])).name == name


def test_a_long_tool_of_a_server_keeps_its_name_for_the_server() -> None:
    """B080."""
    read = with_server(mcp(), a_listed("x" * 70))
    (declared,) = read.declarations()
    tool = found(read, str(declared["name"]))
    assert LEGAL.match(tool.flat)
    assert (tool.name, tool.group, tool.server and tool.server.label) == ("x" * 70, "docs", "docs")


@given(st.sampled_from(["function", "custom", "mcp"]), st.text(max_size=64), NAMES)
def test_a_flat_name_is_legal_and_depends_on_nothing_else(kind: str, group: str, name: str) -> None:
    assert LEGAL.match(flat_name(kind, group, name))
    assert flat_name(kind, group, name) == flat_name(kind, group, name)


def test_flat_names_are_the_same_in_every_process() -> None:
    """B080: written down once; another value would part stored history from new declarations."""
    assert flat_name("mcp", "docs", "search") == "docs__search"
    assert flat_name("mcp", "docs", "é" * 3) == "docs______d9c52877c7"


@given(st.lists(NAMES, min_size=2, max_size=20, unique=True))
def test_names_that_differ_stay_different(names: list[str]) -> None:
    """B081: unless they are refused, every tool has a name of its own that leads back to it."""
    read = with_server(mcp(), *map(a_listed, names))
    assert sorted(found(read, str(one["name"])).name for one in read.declarations()) == sorted(names)


def test_tails_that_are_cut_off_still_tell_names_apart() -> None:
    """B081."""
    read = with_server(mcp(), a_listed("t" * 70 + "a"), a_listed("t" * 70 + "b"))
    assert len({one["name"] for one in read.declarations()}) == 2


def test_servers_whose_labels_begin_alike_keep_their_tools_apart() -> None:
    """B081."""
    first, second = "l" * 60 + "1", "l" * 60 + "2"
    read = table(mcp(first), mcp(second))
    for one in read.mcp:
        read = read.with_listed(one, [a_listed("search")])
    assert [found(read, str(one["name"])).group for one in read.declarations()] == [first, second]


@pytest.mark.parametrize(
    "tools",
    [
        (function("look"), function("look")),
        (function("look"), custom("look")),
        (function("crm__lookup"), namespace("crm", function("lookup"))),
        (namespace("crm", function("lookup")), namespace("crm", function("lookup"))),
        (function("web_search"), {"type": "web_search"}),
        ({"type": "web_search"}, {"type": "web_search_preview"}),
        (function("tool_search"), {"type": "tool_search", "execution": "client"}),
    ],
)
def test_two_tools_of_one_name_are_refused_before_any_inference(tools: tuple[JsonObject, JsonObject]) -> None:
    assert refusal(*tools) == (InvalidRequest, "tools[1]")


def test_a_listed_tool_that_takes_a_name_is_refused() -> None:
    read = table(function("docs__find"), mcp())
    with pytest.raises(InvalidRequest) as refused:
        read.with_listed(read.mcp[0], [a_listed("find")])
    assert refused.value.param == "tools[1]"


def test_members_of_two_namespaces_may_have_one_name() -> None:
    """B059."""
    read = table(namespace("crm", function("lookup")), namespace("erp", function("lookup")))
    assert [(found(read, flat).group, found(read, flat).name) for flat in ("crm__lookup", "erp__lookup")] == [
        ("crm", "lookup"),
        ("erp", "lookup"),
    ]


# What the engine is offered.


def test_a_function_goes_to_the_engine_without_what_only_clients_know() -> None:
    (declared,) = table(function("look", strict=True, defer_loading=True, output_schema={}, description=None)).declarations()
    assert declared == function("look", strict=True)


def test_a_custom_tool_is_a_function_of_one_string_whose_grammar_is_told() -> None:
    """B060."""
    (declared,) = table(custom("patch", description="Edits.", format=GRAMMAR)).declarations()
    parameters = declared["parameters"]
    assert isinstance(parameters, dict)
    assert (list(parameters["properties"]), parameters["required"]) == (["input"], ["input"])
    assert "Edits." in str(declared["description"])
    assert 'start: "a" NUMBER' in str(declared["description"])


@pytest.mark.parametrize("format", [None, {"type": "text"}, GRAMMAR, {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}])
def test_no_format_of_a_custom_tool_is_refused(format: JsonObject | None) -> None:
    assert len(table(custom("patch", format=format)).declarations()) == 1


def test_a_namespace_is_a_function_for_each_member() -> None:
    """B059."""
    read = table(namespace("crm", function("lookup"), custom("note")))
    assert [one["name"] for one in read.declarations()] == ["crm__lookup", "crm__note"]
    assert found(read, "crm__note").kind == "custom"


@pytest.mark.parametrize("kind", web_search.SPEC.kinds)
def test_web_search_under_each_of_its_names_is_one_function(kind: str) -> None:
    (declared,) = table({"type": kind}).declarations()
    assert declared["name"] == "web_search"
    assert found(table({"type": kind}), "web_search").kind == "web_search"


def test_a_server_declares_what_it_lists_and_the_request_allows() -> None:
    listed = (a_listed("read", read_only=True), a_listed("write", read_only=False))
    assert [one["name"] for one in with_server(mcp(), *listed).declarations()] == ["docs__read", "docs__write"]
    assert [one["name"] for one in with_server(mcp(allowed_tools=["write"]), *listed).declarations()] == ["docs__write"]
    for filter in ({"read_only": True}, {"tool_names": ["read"]}, {"tool_names": ["read", "write"], "read_only": True}):
        assert [one["name"] for one in with_server(mcp(allowed_tools=filter), *listed).declarations()] == ["docs__read"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "file_search", "vector_store_ids": []}, "tools[0].type"),
        ({"type": "computer_use_preview"}, "tools[0].type"),
        ({"type": "nonsense"}, "tools[0].type"),
        ({"type": "tool_search"}, "tools[0].execution"),
        ({"type": "mcp", "server_label": "x", "connector_id": "c"}, "tools[0].connector_id"),
        (namespace("crm", {"type": "web_search"}), "tools[0].tools[0].type"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tool: JsonObject, param: str) -> None:
    assert refusal(tool) == (Unsupported, param)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (function(""), "tools[0].name"),
        (function("n" * 129), "tools[0].name"),
        (function("line\nbreak"), "tools[0].name"),
        (custom("c", format={"type": "xml"}), "tools[0].format.type"),
        ({"type": "namespace", "name": "crm"}, "tools[0].tools"),
        ({"type": "mcp"}, "tools[0].server_label"),
        ({"type": "mcp", "server_label": "x"}, "tools[0].server_url"),
        (mcp(server_url="ftp://x"), "tools[0].server_url"),
        (mcp(server_url="stdio:rm -rf /"), "tools[0].server_url"),
        (mcp(headers={"a": 1}), "tools[0].headers"),
        (mcp(authorization=1), "tools[0].authorization"),
        (mcp(require_approval="sometimes"), "tools[0].require_approval"),
        (mcp(require_approval={"never": {"tool_names": "x"}}), "tools[0].require_approval.never.tool_names"),
        (mcp(require_approval={"always": {"read_only": 1}}), "tools[0].require_approval.always.read_only"),
        (mcp(allowed_tools="x"), "tools[0].allowed_tools"),
    ],
)
def test_what_is_wrong_in_a_tool_is_refused_by_name(tool: JsonObject, param: str) -> None:
    assert refusal(tool) == (InvalidRequest, param)


def test_two_servers_of_one_label_are_refused() -> None:
    assert refusal(mcp(), mcp()) == (InvalidRequest, "tools[1].server_label")


def test_a_configured_server_needs_no_address() -> None:
    read = table({"type": "mcp", "server_label": "inhouse"}, servers=frozenset({"inhouse"}))
    assert (read.mcp[0].server.label, read.mcp[0].server.url) == ("inhouse", None)


# Approvals.


@pytest.mark.parametrize(
    ("approval", "gated"),
    [
        (None, ["read", "write", "other"]),
        ("always", ["read", "write", "other"]),
        ("never", []),
        ({"never": {"tool_names": ["read"]}}, ["write", "other"]),
        ({"never": {"read_only": True}}, ["write", "other"]),
        ({"never": {"read_only": False}}, ["read"]),
        ({"always": {"tool_names": ["write"]}, "never": {"tool_names": ["read", "write"]}}, ["write", "other"]),
        ({"never": {}}, ["read", "write", "other"]),
        ({}, ["read", "write", "other"]),
    ],
)
def test_what_nobody_has_said_to_be_free_needs_an_approval(approval: object, gated: list[str]) -> None:
    """B069."""
    listed = (a_listed("read", read_only=True), a_listed("write"), a_listed("other", read_only=False))
    read = with_server(mcp(require_approval=approval), *listed)
    assert [tool.name for tool in read.tools.values() if tool.needs_approval] == gated


# Tools that items bring along.


def test_items_bring_tools_along_and_a_tool_that_is_there_is_not_added_again() -> None:
    more = declared_by_items(table(function("look")), [("input[0].tools", [function("look"), namespace("crm", function("find"))])], SPECS)
    assert [one["name"] for one in more.declarations()] == ["look", "crm__find"]


def test_an_item_may_not_bring_another_tool_of_a_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        declared_by_items(table(function("crm__find")), [("input[0].tools", [namespace("crm", function("find"))])], SPECS)
    assert refused.value.param == "input[0].tools[0]"


def test_an_item_may_not_bring_a_server_along() -> None:
    with pytest.raises(Unsupported) as refused:
        declared_by_items(table(), [("input[0].tools", [mcp()])], SPECS)
    assert refused.value.param == "input[0].tools[0].type"


# tool_choice.

ALL = (function("look"), custom("patch"), namespace("crm", function("lookup")), {"type": "web_search"}, mcp())


def chosen(choice: object) -> object:
    read = table(*ALL)
    return read.with_choice(choice).with_listed(read.mcp[0], [a_listed("find"), a_listed("other")]).forced_choice()


@pytest.mark.parametrize(
    ("choice", "engines"),
    [
        (None, None),
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "name": "look"}),
        ({"type": "custom", "name": "patch"}, {"type": "function", "name": "patch"}),
        ({"type": "function", "name": "lookup", "namespace": "crm"}, {"type": "function", "name": "crm__lookup"}),
        ({"type": "namespace", "name": "crm"}, {"type": "function", "name": "crm__lookup"}),
        ({"type": "web_search"}, {"type": "function", "name": "web_search"}),
        ({"type": "web_search_preview_2025_03_11"}, {"type": "function", "name": "web_search"}),
        ({"type": "mcp", "server_label": "docs", "name": "find"}, {"type": "function", "name": "docs__find"}),
        ({"type": "mcp", "server_label": "docs"}, "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}, "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "docs"}]}, "required"),
    ],
)
def test_every_form_of_tool_choice_becomes_what_an_engine_knows(choice: object, engines: object) -> None:
    assert chosen(choice) == engines


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("maybe", "tool_choice"),
        ({"type": "function", "name": "nobody"}, "tool_choice"),
        ({"type": "file_search"}, "tool_choice"),
        ({"type": "mcp", "server_label": "nobody"}, "tool_choice.server_label"),
        ({"type": "allowed_tools", "mode": "some", "tools": [{"type": "function", "name": "look"}]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nobody"}]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["look"]}, "tool_choice.tools[0]"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: object, param: str) -> None:
    assert refusal(*ALL, tool_choice=choice) == (InvalidRequest, param)


@pytest.mark.parametrize(
    ("reference", "allowed"),
    [
        ({"type": "function", "name": "look"}, ["look"]),
        ({"type": "custom", "name": "patch"}, ["patch"]),
        ({"type": "web_search"}, ["web_search"]),
        ({"type": "namespace", "name": "crm"}, ["crm__lookup"]),
        ({"type": "mcp", "server_label": "docs"}, ["docs__find", "docs__other"]),
        ({"type": "mcp", "server_label": "docs", "name": "find"}, ["docs__find"]),
    ],
)
def test_allowed_tools_leave_the_list_and_bar_the_rest(reference: JsonObject, allowed: list[str]) -> None:
    read = table(*ALL).with_choice({"type": "allowed_tools", "mode": "auto", "tools": [reference]})
    read = read.with_listed(read.mcp[0], [a_listed("find"), a_listed("other")])
    names = [str(one["name"]) for one in read.declarations()]
    assert names == ["look", "patch", "crm__lookup", "web_search", "docs__find", "docs__other"]
    assert [name for name in names if read.find(name) is not None] == allowed


# The echo.


def test_a_server_is_echoed_without_its_secrets() -> None:
    """B087."""
    url = "https://user:pw@docs.example/mcp?key=k#x"
    echoed = request(HELLO, tools=[mcp(server_url=url, headers={"x": "S1"}, authorization="S2", allowed_tools=["find"])]).echo["tools"]
    assert echoed == [
        {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp", "allowed_tools": ["find"]},
    ]
