"""What the history service refuses or cannot do, one class per reason. HTTP statuses are not known here."""

import grpc

from svckit.errors import ServiceError


class PreviousResponseNotFound(ServiceError):
    """Previous response with id '{id}' not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "previous_response_not_found"
    param = "previous_response_id"


class ResponseNotFound(ServiceError):
    """Response with id '{id}' not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "response_not_found"


class ItemsTooLarge(ServiceError):
    """The items asked for are larger than the {limit} bytes that this service loads."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "context_too_large"


class ContextTooLarge(ServiceError):
    """The context of '{id}' is larger than the {limit} bytes that this service loads."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "context_too_large"


class HistoryIncomplete(ServiceError):
    """Stored items of '{id}' are missing: {found} of {expected} are there."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "history_incomplete"


class ResponseConflict(ServiceError):
    """Response '{id}' is stored with other content already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "response_conflict"


class TreeNotFound(ServiceError):
    """What response '{id}' continues from is not there any more."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "tree_not_found"


class LeaseLost(ServiceError):
    """The lease of '{id}' has passed to another holder, or was given back."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "lease_lost"


class ClaimNotFound(ServiceError):
    """There is no claim '{claim_id}' that response '{response_id}' may make or settle."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "claim_not_found"


class ConversationNotFound(ServiceError):
    """Conversation with id '{id}' not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "conversation_not_found"
    param = "conversation"


class ItemNotFound(ServiceError):
    """Item with id '{id}' not found in this conversation."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "item_not_found"


class ConversationConflict(ServiceError):
    """The conversation id '{id}' is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "conversation_conflict"


class ConversationFull(ServiceError):
    """Conversation '{id}' takes no further items."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "conversation_full"
    param = "conversation"


class ConversationLocked(ServiceError):
    """A turn is working on conversation '{id}'; try again when it has ended."""

    code = grpc.StatusCode.ABORTED
    reason = "conversation_locked"
    param = "conversation"


class QueueFull(ServiceError):
    """Too many background responses are waiting already; try again later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "queue_full"


class NotBackground(ServiceError):
    """Response '{id}' does not run in the background; only background responses can be cancelled."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "not_background"


class EventsGone(ServiceError):
    """The events of response '{id}' are not kept, or not any more."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "events_gone"


class WatchTimeout(ServiceError):
    """Response '{id}' has had no event for longer than any turn may run."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "watch_timeout"


class IdempotencyMismatch(ServiceError):
    """The idempotency key '{key}' was used with another request."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "idempotency_mismatch"


class InvalidRequest(ServiceError):
    """The request is not valid: {why}."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "invalid_request"


class HistoryOverloaded(ServiceError):
    """The history service has no room for this call right now; try again later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "history_overloaded"


class DatabaseUnavailable(ServiceError):
    """The database does not answer."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "database_unavailable"


class ConnectionLost(DatabaseUnavailable):
    """The connection to the database was lost."""
