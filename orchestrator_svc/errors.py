"""Why a turn or a relayed request is refused: one class per reason. Nothing here knows an HTTP status."""

from grpc import StatusCode

from svckit.errors import ServiceError


class InvalidRequest(ServiceError):
    """The request is not valid: {problem}"""

    code = StatusCode.INVALID_ARGUMENT
    reason = "invalid_request"


class Unsupported(ServiceError):
    """{what} is not supported by this build."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "unsupported"


class PreviousResponseNotFound(ServiceError):
    """Previous response with id '{response_id}' not found."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "previous_response_not_found"
    param = "previous_response_id"


class ConversationNotFound(ServiceError):
    """Conversation with id '{conversation_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "conversation_not_found"
    param = "conversation"


class ConversationFull(ServiceError):
    """Conversation '{conversation_id}' takes no further items; start a new one."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "conversation_full"
    param = "conversation"


class ResponseNotContinuable(ServiceError):
    """Response '{response_id}' is {status} and cannot be continued; continue from {instead}."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "response_not_continuable"
    param = "previous_response_id"


class ResponseNotFinished(ServiceError):
    """Response '{response_id}' is still {status}; wait for its end before you continue from it."""

    code = StatusCode.ABORTED
    reason = "response_not_finished"
    param = "previous_response_id"


class RequestTooLarge(ServiceError):
    """The input and the history that it continues are together larger than {limit} bytes."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "request_too_large"
    param = "input"


class Overloaded(ServiceError):
    """Too many turns are running; try again later."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "overloaded"


class ShuttingDown(ServiceError):
    """The service is shutting down; try again."""

    code = StatusCode.UNAVAILABLE
    reason = "server_shutdown"


class HistoryUnavailable(ServiceError):
    """The history service cannot be reached; try again later."""

    code = StatusCode.UNAVAILABLE
    reason = "history_unavailable"


class EngineRefused(ServiceError):
    """The engine refused the request."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "engine_invalid_request"


class CompactionFailed(ServiceError):
    """The model gave no summary of the context."""

    code = StatusCode.UNKNOWN
    reason = "compaction_failed"


class ContextLengthExceeded(ServiceError):
    """The input is longer than the model's context window."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "context_length_exceeded"
    param = "input"


class ModelNotFound(ServiceError):
    """The engine does not serve the model '{model}'."""

    code = StatusCode.NOT_FOUND
    reason = "model_not_found"
    param = "model"


class EngineRateLimited(ServiceError):
    """The engine takes no further requests at the moment; try again later."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "rate_limit_exceeded"


class EngineUnavailable(ServiceError):
    """The engine cannot be reached or takes no requests; try again later."""

    code = StatusCode.UNAVAILABLE
    reason = "engine_unavailable"


class EngineTimeout(ServiceError):
    """The engine did not answer in time."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "engine_timeout"


class EngineError(ServiceError):
    """The engine answered with an error or with something that is no answer."""

    code = StatusCode.UNKNOWN
    reason = "engine_error"


class EngineStreamInterrupted(ServiceError):
    """The engine's answer broke off before its end."""

    code = StatusCode.UNKNOWN
    reason = "engine_stream_interrupted"
