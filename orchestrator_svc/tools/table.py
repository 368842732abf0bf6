"""The tool table: from the tools of a request to the functions that the engine sees, and back to what the client declared.

The engine knows one kind of tool, a function. Everything else is given a flat, legal name of at most 64 characters here, and the call that
comes back is looked up by it: whose it is, and how the client knows it. A flat name is a pure function of a tool's own kind, group and
name, so that it never changes with the tools around it; two tools that would share one are refused before any inference. This file is pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ListedTool, McpServer, Spec, Tool
from orchestrator_svc.tools.names import flat_name


@dataclass(frozen=True, slots=True)
class McpTool:
    """An `mcp` tool of a request: the server, and which of its tools may be called and how."""

    server: McpServer
    path: str
    only: frozenset[str] | None = None
    only_read_only: bool = False
    approval: str = "always"
    always: "Filter | None" = None
    never: "Filter | None" = None

    def allows(self, tool: ListedTool) -> bool:
        """Whether `allowed_tools` lets the model call it."""
        return (self.only is None or tool.name in self.only) and (tool.is_read_only or not self.only_read_only)

    def needs_approval(self, tool: ListedTool) -> bool:
        """Whether a client must approve each call; what no filter names does."""
        if self.always is not None and self.always.matches(tool):
            return True
        if self.never is not None and self.never.matches(tool):
            return False
        return self.approval != "never"


@dataclass(frozen=True, slots=True)
class Filter:
    """Names tools of a server, one by one or by whether they only read."""

    names: frozenset[str] | None
    read_only: bool | None

    def matches(self, tool: ListedTool) -> bool:
        """Whether the tool is meant; a filter that says nothing means none."""
        if self.names is None and self.read_only is None:
            return False
        return (self.names is None or tool.name in self.names) and (self.read_only is None or tool.is_read_only == self.read_only)


class ToolTable(Struct, frozen=True):
    """The tools of one turn by their flat names, the MCP servers that are to be listed, and what the client chose."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    mcp: tuple[McpTool, ...] = ()
    choice: object = None

    def declarations(self) -> list[JsonObject]:
        """The function declarations for the engine, in the order in which the tools were given."""
        return [tool.declaration for tool in self.tools.values()]

    def find(self, flat: str) -> Tool | None:
        """The tool that a call by this name is for, or None for a call that may not be made."""
        tool = self.tools.get(flat)
        return tool if tool is not None and self._is_allowed(tool) else None

    def with_listed(self, mcp: McpTool, listed: Iterable[ListedTool]) -> "ToolTable":
        """The table with the tools of one server. Raises InvalidRequest where a name is taken."""
        tools = dict(self.tools)
        for one in listed:
            if mcp.allows(one):
                _add(tools, _listed_tool(mcp, one), mcp.path)
        return replace(self, tools=tools)

    def forced_choice(self) -> object:
        """The engine's `tool_choice` for the first round; None leaves it to the engine. Raises InvalidRequest."""
        return _engine_choice(self.choice, self)

    def with_choice(self, choice: object) -> "ToolTable":
        """The table with a request's `tool_choice`. Raises InvalidRequest where it names a tool that is not there."""
        _check_choice(choice, self)
        return replace(self, choice=choice)

    def _is_allowed(self, tool: Tool) -> bool:
        """`allowed_tools` is a hard constraint: the engine sees all tools, so that its cache stays warm, and may call only some."""
        if not isinstance(self.choice, dict) or self.choice.get("type") != "allowed_tools":
            return True
        return any(_names(reference, tool) for reference in _objects(self.choice.get("tools")))


def read_tools(given: Iterable[JsonObject], specs: Mapping[str, Spec], servers: frozenset[str]) -> ToolTable:
    """The table of a request. `specs` are the gateway-owned kinds, `servers` the MCP servers that the configuration names.

    Raises InvalidRequest and Unsupported with a `param` such as `tools[1].type`.
    """
    tools: dict[str, Tool] = {}
    mcp: list[McpTool] = []
    for position, tool in enumerate(given):
        path = f"tools[{position}]"
        if tool.get("type") == "mcp":
            mcp.append(_mcp_tool(tool, path, servers, mcp))
        else:
            for one in _tools_of(tool, path, specs):
                _add(tools, one, path)
    return ToolTable(tools, tuple(mcp))


def declared_by_items(table: ToolTable, items: Iterable[tuple[str, list[JsonObject]]], specs: Mapping[str, Spec]) -> ToolTable:
    """The table with the tools that input items bring along (`additional_tools`, `tool_search_output`), each list with its path.

    A tool that is declared again, alike, is the same tool.
    """
    tools = dict(table.tools)
    for path, given in items:
        for position, tool in enumerate(given):
            for one in _tools_of(tool, f"{path}[{position}]", specs):
                known = tools.setdefault(one.flat, one)
                if (known.kind, known.group, known.name) != (one.kind, one.group, one.name):
                    raise _taken(one, f"{path}[{position}]")
    return replace(table, tools=tools)


def custom_declaration(flat: str, tool: JsonObject) -> JsonObject:
    """A freeform tool as a function with one string. No engine constrains a function's argument by a grammar, so it stands in the words."""
    description = [str(tool.get("description") or "")]
    format = tool.get("format")
    if isinstance(format, dict) and format.get("type") == "grammar":
        description.append(f"The input must match this {format.get('syntax')} grammar:\n{format.get('definition')}")
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The tool's whole input, as it is."}},
        "required": ["input"],
        "additionalProperties": False,
    }
    return {"type": "function", "name": flat, "description": "\n".join(filter(None, description)), "parameters": parameters}


# Readers of one tool each.


def _tools_of(tool: JsonObject, path: str, specs: Mapping[str, Spec]) -> list[Tool]:
    kind = tool.get("type")
    if kind == "namespace":
        return _members(tool, path)
    if kind in ("function", "custom"):
        return [_client_tool(tool, path, "")]
    if kind == "tool_search":
        return [_tool_search(tool, path)]
    spec = specs.get(str(kind))
    if spec is None:
        raise Unsupported(what=f"A tool of type '{str(kind)[:64]}'", param=f"{path}.type")
    declaration = spec.declare(tool, path)
    name = str(declaration["name"])
    return [Tool(name, spec.kinds[0], name, declaration=declaration, settings=tool, repeatable=spec.repeatable)]


def _members(namespace: JsonObject, path: str) -> list[Tool]:
    name = _name(namespace, path)
    members = namespace.get("tools")
    if not isinstance(members, list):
        raise InvalidRequest("A namespace has a list of tools.", param=f"{path}.tools")
    return [_member(member, f"{path}.tools[{n}]", name) for n, member in enumerate(members)]


def _member(member: object, path: str, namespace: str) -> Tool:
    if not isinstance(member, dict) or member.get("type") not in ("function", "custom"):
        raise Unsupported(what="A tool of this type in a namespace", param=f"{path}.type")
    return _client_tool(member, path, namespace)


def _client_tool(tool: JsonObject, path: str, namespace: str) -> Tool:
    kind, name = str(tool["type"]), _name(tool, path)
    flat = flat_name(kind, namespace, name)
    if kind == "custom":
        _check_format(tool, path)
        return Tool(flat, kind, name, namespace, custom_declaration(flat, tool))
    kept = {key: value for key, value in tool.items() if key not in _CLIENT_ONLY and value is not None}
    return Tool(flat, kind, name, namespace, kept | {"name": flat})


_CLIENT_ONLY = ("defer_loading", "output_schema", "allowed_callers", "async")


def _check_format(tool: JsonObject, path: str) -> None:
    format = tool.get("format")
    if format is None or (isinstance(format, dict) and format.get("type") in ("text", "grammar")):
        return
    raise InvalidRequest("The format of a custom tool is text or a grammar.", param=f"{path}.format.type")


def _tool_search(tool: JsonObject, path: str) -> Tool:
    if tool.get("execution") != "client":
        raise Unsupported(what="A tool search that the gateway executes", param=f"{path}.execution")
    declaration: JsonObject = {
        "type": "function",
        "name": "tool_search",
        "description": tool.get("description") or "Searches for further tools.",
        "parameters": tool.get("parameters") or {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
    return Tool("tool_search", "tool_search", "tool_search", declaration=declaration)


def _mcp_tool(tool: JsonObject, path: str, servers: frozenset[str], before: list[McpTool]) -> McpTool:
    label = tool.get("server_label")
    if not isinstance(label, str) or not label or len(label) > 64:
        raise InvalidRequest("An MCP server needs a label of 1 to 64 characters.", param=f"{path}.server_label")
    if any(label == other.server.label for other in before):
        raise InvalidRequest(f"Two MCP servers have the label '{label}'.", param=f"{path}.server_label")
    for key in ("connector_id", "tunnel_id"):
        if tool.get(key) is not None:
            raise Unsupported(what=f"An MCP server by {key}", param=f"{path}.{key}")
    approval, always, never = _approval(tool.get("require_approval"), f"{path}.require_approval")
    only, only_read_only = _allowed(tool.get("allowed_tools"), f"{path}.allowed_tools")
    return McpTool(_server(tool, label, path, servers), path, only, only_read_only, approval, always, never)


def _server(tool: JsonObject, label: str, path: str, servers: frozenset[str]) -> McpServer:
    url, headers, authorization = tool.get("server_url"), tool.get("headers"), tool.get("authorization")
    if url is None and label not in servers:
        raise InvalidRequest(f"No MCP server is configured as '{label}', so a server_url is needed.", param=f"{path}.server_url")
    if url is not None and (not isinstance(url, str) or not url.lower().startswith(("http://", "https://"))):
        raise InvalidRequest("A server_url is an http or https URL.", param=f"{path}.server_url")
    if headers is not None and not (isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())):
        raise InvalidRequest("Headers are an object of strings.", param=f"{path}.headers")
    if authorization is not None and not isinstance(authorization, str):
        raise InvalidRequest("An authorization is a string.", param=f"{path}.authorization")
    return McpServer(label, url, {key: str(value) for key, value in (headers or {}).items()}, authorization or "")


def _allowed(given: object, path: str) -> tuple[frozenset[str] | None, bool]:
    if given is None:
        return None, False
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return frozenset(given), False
    chosen = _filter(given, path)
    return chosen.names, bool(chosen.read_only)


def _approval(given: object, path: str) -> tuple[str, Filter | None, Filter | None]:
    if given is None or given in ("always", "never"):
        return str(given or "always"), None, None
    if not isinstance(given, dict):
        raise InvalidRequest("Supported values are 'always', 'never', or an object of filters.", param=path)
    always, never = given.get("always"), given.get("never")
    return (
        "always",
        None if always is None else _filter(always, f"{path}.always"),
        None if never is None else _filter(never, f"{path}.never"),
    )


def _filter(given: object, path: str) -> Filter:
    if not isinstance(given, dict):
        raise InvalidRequest("A filter is an object with tool_names or read_only.", param=path)
    names, read_only = given.get("tool_names"), given.get("read_only")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InvalidRequest("tool_names is a list of strings.", param=f"{path}.tool_names")
    if read_only is not None and not isinstance(read_only, bool):
        raise InvalidRequest("read_only is true or false.", param=f"{path}.read_only")
    return Filter(None if names is None else frozenset(names), read_only)


def _listed_tool(mcp: McpTool, listed: ListedTool) -> Tool:
    flat = flat_name("mcp", mcp.server.label, listed.name)
    declaration: JsonObject = {"type": "function", "name": flat, "parameters": listed.input_schema}
    if listed.description:
        declaration["description"] = listed.description
    return Tool(
        flat,
        "mcp",
        listed.name,
        mcp.server.label,
        declaration,
        server=mcp.server,
        needs_approval=mcp.needs_approval(listed),
        repeatable=listed.is_idempotent,
    )


def _name(tool: JsonObject, path: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
        raise InvalidRequest("A tool's name has 1 to 128 printable characters.", param=f"{path}.name")
    return name


def _add(tools: dict[str, Tool], tool: Tool, path: str) -> None:
    if tool.flat in tools:
        raise _taken(tool, path)
    tools[tool.flat] = tool


def _taken(tool: Tool, path: str) -> InvalidRequest:
    return InvalidRequest(f"Two tools would be known to the model as '{tool.flat}'.", param=path)


# tool_choice: the client's words, to the engine's.


def _check_choice(choice: object, table: ToolTable) -> None:
    """Refuses a choice that cannot be; tools of MCP servers are not known yet, and so a choice among them is checked later."""
    if choice is None or (isinstance(choice, str) and choice in _WORDS):
        return
    if isinstance(choice, str):
        raise InvalidRequest(f"Supported values are: {', '.join(map(repr, _WORDS))}, or an object.", param="tool_choice")
    if not isinstance(choice, dict):
        raise InvalidRequest("A tool choice is a word or an object.", param="tool_choice")
    if choice.get("type") == "allowed_tools":
        _check_allowed_tools(choice, table)
    elif choice.get("type") == "mcp":
        _check_mcp_choice(choice, table)
    else:
        _engine_choice(choice, table)


_WORDS = ("none", "auto", "required")


def _check_allowed_tools(choice: JsonObject, table: ToolTable) -> None:
    if choice.get("mode") not in ("auto", "required"):
        raise InvalidRequest("Supported values are: 'auto', 'required'.", param="tool_choice.mode")
    references = choice.get("tools")
    if not isinstance(references, list) or not references:
        raise InvalidRequest("allowed_tools names at least one tool.", param="tool_choice.tools")
    for n, reference in enumerate(references):
        known = isinstance(reference, dict) and (
            any(_names(reference, tool) for tool in table.tools.values())
            or any(reference.get("server_label") == one.server.label for one in table.mcp)
        )
        if not known:
            raise InvalidRequest("The tool that is allowed is not among the tools.", param=f"tool_choice.tools[{n}]")


def _check_mcp_choice(choice: JsonObject, table: ToolTable) -> None:
    if not any(choice.get("server_label") == one.server.label for one in table.mcp):
        raise InvalidRequest("The server that is chosen is not among the tools.", param="tool_choice.server_label")


def _engine_choice(choice: object, table: ToolTable) -> object:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        return choice["mode"]
    matching = [tool for tool in table.tools.values() if _names(choice, tool)]
    if not matching:
        raise InvalidRequest("The tool that is chosen is not among the tools.", param="tool_choice")
    return {"type": "function", "name": matching[0].flat} if len(matching) == 1 else "required"


def _names(reference: JsonObject, tool: Tool) -> bool:
    """Whether a reference of a tool_choice means this tool."""
    kind = str(reference.get("type"))
    if kind == "mcp":
        return tool.kind == "mcp" and reference.get("server_label") == tool.group and reference.get("name") in (None, tool.name)
    if kind == "namespace":
        return tool.group == reference.get("name") and tool.kind in ("function", "custom")
    if kind in ("function", "custom"):
        return tool.kind == kind and reference.get("name") == tool.name and reference.get("namespace") in (None, tool.group)
    return _base_kind(kind) == _base_kind(tool.kind)


def _base_kind(kind: str) -> str:
    """`web_search_preview_2025_03_11` and its like name the same tool as `web_search`."""
    return re.sub(r"(_preview)?(_\d{4}_\d{2}_\d{2})?\Z", "", kind)


def _objects(value: object) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
