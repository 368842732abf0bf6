"""The parameters of a turn that the edge checks: their types and ranges. Values only; what they mean is the orchestrator's business."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Word = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
Model = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class Text(Struct, frozen=True, tag="text"):
    """Plain text."""


class JsonObject(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, tag="json_schema"):
    """JSON by a schema."""

    name: Name
    schema: dict[str, Raw]
    strict: bool | None = None
    description: str | None = None


class TextOptions(Struct, frozen=True):
    """`text`."""

    format: Text | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Struct, frozen=True):
    """`reasoning`; which efforts there are is the model's business."""

    effort: Word | None = None
    summary: Word | None = None


class ContextManagement(Struct, frozen=True):
    """One entry of `context_management`."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


class ConversationReference(Struct, frozen=True):
    """`conversation` in its longer form."""

    id: str


class StreamOptions(Struct, frozen=True):
    """`stream_options`."""

    include_obfuscation: bool | None = None


class Typed(Struct, frozen=True):
    """A tool, or a tool choice that is an object: only its type is of interest here."""

    type: str


class Known(Struct, frozen=True):
    """The fields that the edge checks; null is the same as absent."""

    model: Model | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    background: bool | None = None
    context_management: list[ContextManagement] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    instructions: str | None = None
    include: list[Includable] | None = None
    metadata: Metadata | None = None
    tools: list[Typed] | None = None
    tool_choice: Literal["none", "auto", "required"] | Typed | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Word | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
