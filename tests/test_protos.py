"""The contract: the committed stubs are what the protos say, and the protos are documented and named as agreed."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).parents[1]
PROTOS = sorted(str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos").rglob("*.proto"))

SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
CAMEL = re.compile(r"([A-Z][a-z0-9]*)+\Z")
SHOUTING = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*\Z")

# numbers of fields in descriptor.proto, of which the paths to comments are made
MESSAGES, ENUMS, SERVICES = FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, 5, FileDescriptorProto.SERVICE_FIELD_NUMBER
FIELDS, NESTED, NESTED_ENUMS, ONEOFS = 2, 3, 4, 8
VALUES, METHODS = 2, 2

Path_ = tuple[int, ...]


@cache
def compiled() -> dict[str, FileDescriptorProto]:
    """The protos as the protoc of today reads them, comments included."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", "--include_source_info", "--descriptor_set_out=/dev/stdout", *PROTOS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return {file.name: file for file in FileDescriptorSet.FromString(done.stdout).file}


def without_details(file: FileDescriptorProto) -> FileDescriptorProto:
    """The file without comments, and without the JSON names that only some compilers write down."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    for message in copy.message_type:
        _clear_json_names(message)
    return copy


def _clear_json_names(message: DescriptorProto) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _clear_json_names(nested)


def messages(file: FileDescriptorProto) -> Iterator[tuple[Path_, DescriptorProto]]:
    """All messages of a file, nested ones included, with their paths."""
    waiting = [((MESSAGES, index), message) for index, message in enumerate(file.message_type)]
    while waiting:
        path, message = waiting.pop()
        yield path, message
        waiting += [((*path, NESTED, index), nested) for index, nested in enumerate(message.nested_type)]


def enums(file: FileDescriptorProto) -> Iterator[tuple[Path_, EnumDescriptorProto]]:
    yield from (((ENUMS, index), enum) for index, enum in enumerate(file.enum_type))
    for path, message in messages(file):
        yield from (((*path, NESTED_ENUMS, index), enum) for index, enum in enumerate(message.enum_type))


def declarations(file: FileDescriptorProto) -> Iterator[tuple[Path_, str]]:
    """Whatever must have a comment, by path and name."""
    for index, service in enumerate(file.service):
        yield (SERVICES, index), service.name
        yield from (((SERVICES, index, METHODS, i), method.name) for i, method in enumerate(service.method))
    for path, message in messages(file):
        yield path, message.name
        yield from (((*path, FIELDS, i), f"{message.name}.{field.name}") for i, field in enumerate(message.field))
        yield from (((*path, ONEOFS, i), f"{message.name}.{oneof.name}") for i, oneof in named_oneofs(message))
    for path, enum in enums(file):
        yield path, enum.name
        yield from (((*path, VALUES, i), value.name) for i, value in enumerate(enum.value))


def named_oneofs(message: DescriptorProto) -> list[tuple[int, object]]:
    """The oneofs that somebody wrote; `optional` makes others."""
    made = {field.oneof_index for field in message.field if field.proto3_optional}
    return [(index, oneof) for index, oneof in enumerate(message.oneof_decl) if index not in made]


def comments(file: FileDescriptorProto) -> dict[Path_, str]:
    return {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}


@pytest.mark.parametrize("proto", PROTOS)
def test_the_stubs_are_what_the_protos_say(proto: str) -> None:
    module = importlib.import_module(proto.removesuffix(".proto").replace("/", ".") + "_pb2")
    committed = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert without_details(committed) == without_details(compiled()[proto]), "run `make protos`"


@pytest.mark.parametrize("proto", PROTOS)
def test_the_grpc_stubs_have_every_method(proto: str) -> None:
    module = importlib.import_module(proto.removesuffix(".proto").replace("/", ".") + "_pb2_grpc")
    for service in compiled()[proto].service:
        servicer = getattr(module, f"{service.name}Servicer")
        assert {name for name in vars(servicer) if not name.startswith("_")} == {method.name for method in service.method}


@pytest.mark.parametrize("proto", PROTOS)
def test_the_typed_stubs_name_every_field(proto: str) -> None:
    typed = (ROOT / proto.replace(".proto", "_pb2.pyi")).read_text("utf-8")
    for _, message in messages(compiled()[proto]):
        assert f"class {message.name}(" in typed
        for field in message.field:
            assert re.search(rf"\b{field.name}\b", typed), f"{message.name}.{field.name}: run `make protos`"


@pytest.mark.parametrize("proto", PROTOS)
def test_everything_declared_has_a_sentence(proto: str) -> None:
    file = compiled()[proto]
    said = comments(file)
    assert [name for path, name in declarations(file) if not said.get(path, "").endswith((".", ":"))] == []


@pytest.mark.parametrize("proto", PROTOS)
def test_names_follow_the_style(proto: str) -> None:
    file = compiled()[proto]
    assert file.package == ".".join(proto.split("/")[:-1])
    for _, message in messages(file):
        assert CAMEL.match(message.name)
        assert all(SNAKE.match(field.name) for field in message.field)
    for _, enum in enums(file):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        assert all(SHOUTING.match(value.name) and value.name.startswith(f"{prefix}_") for value in enum.value)
        assert enum.value[0].name == f"{prefix}_UNSPECIFIED"


@pytest.mark.parametrize("proto", PROTOS)
def test_every_rpc_has_its_own_request_and_reply(proto: str) -> None:
    package = compiled()[proto].package
    for service in compiled()[proto].service:
        assert service.name.endswith("Service")
        for method in service.method:
            assert method.input_type == f".{package}.{method.name}Request"
            assert method.output_type == f".{package}.{method.name}Reply"


@pytest.mark.parametrize("proto", PROTOS)
def test_every_rpc_says_how_it_fails(proto: str) -> None:
    file = compiled()[proto]
    said = comments(file)
    for index, service in enumerate(file.service):
        for i, method in enumerate(service.method):
            text = said[(SERVICES, index, METHODS, i)]
            assert re.search(r"\b[A-Z]+(_[A-Z]+)*[ (]+`[a-z_]+`", text), f"{method.name} names no failure by status and reason"


@pytest.mark.parametrize("proto", PROTOS)
def test_lists_are_paged(proto: str) -> None:
    by_name = {message.name: {field.name for field in message.field} for _, message in messages(compiled()[proto])}
    for service in compiled()[proto].service:
        for method in service.method:
            if method.name.startswith("List"):
                assert {"page_size", "page_token"} <= by_name[f"{method.name}Request"]
                assert "next_page_token" in by_name[f"{method.name}Reply"]


# A process that takes work takes that of every owner.
WITHOUT_OWNER = {"TakeTurn"}


@pytest.mark.parametrize("proto", [proto for proto in PROTOS if compiled()[proto].service])
def test_every_request_names_its_owner(proto: str) -> None:
    by_name = {message.name: message for _, message in messages(compiled()[proto])}
    for service in compiled()[proto].service:
        for method in service.method:
            if method.name in WITHOUT_OWNER:
                continue
            first = by_name[f"{method.name}Request"].field[0]
            assert (first.name, first.type) == ("owner", FieldDescriptorProto.TYPE_STRING)
