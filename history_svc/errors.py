"""What the history service refuses or cannot do, one class per reason. HTTP statuses are not known here."""

import grpc

from svckit.errors import ServiceError


class PreviousResponseNotFound(ServiceError):
    """Previous response with id '{response_id}' not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "previous_response_not_found"
    param = "previous_response_id"


class ResponseNotFound(ServiceError):
    """Response with id '{response_id}' not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "response_not_found"


class ItemsTooLarge(ServiceError):
    """The items asked for are larger than the {limit} bytes that this service loads."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "context_too_large"


class ContextTooLarge(ServiceError):
    """The context of response '{response_id}' is larger than the {limit} bytes that this service loads."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "context_too_large"
    param = "previous_response_id"


class HistoryIncomplete(ServiceError):
    """Stored items of response '{response_id}' are missing: {found} of {expected} are there."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "history_incomplete"


class ResponseConflict(ServiceError):
    """Response '{response_id}' is stored with other content already."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "response_conflict"


class TreeNotFound(ServiceError):
    """What response '{response_id}' continues from is not there any more."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "tree_not_found"


class LeaseLost(ServiceError):
    """The lease that response '{response_id}' was made under has passed to another holder."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "lease_lost"


class ClaimNotFound(ServiceError):
    """There is no claim '{claim_id}' that response '{response_id}' may make or settle."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "claim_not_found"


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
