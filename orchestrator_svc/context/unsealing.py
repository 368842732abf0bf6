"""Items that were sealed here and come back from the client that kept them: a compaction regains its window, reasoning its text. Pure."""

import msgspec

from orchestrator_svc.context.sealing import Seals, is_sealed
from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item, make_standing_for
from svckit.json_text import JsonObject


def unsealed(item: Item, seals: Seals, owner: str, path: str) -> Item:
    """The item as it was before it was sealed, if it was. Raises InvalidRequest for content that cannot be opened.

    Reasoning that says its text is taken at its word, and that of other gateways is passed over.
    """
    if item.type not in ("compaction", "reasoning"):
        return item
    blob = msgspec.json.decode(item.body, type=_Sealed).encrypted_content
    if item.type == "reasoning" and (item.rendered or not is_sealed(blob)):
        return item
    content = seals.open(owner, item.type, blob)
    if content is None:
        problem = "The encrypted content was not made here, or has been changed."
        raise InvalidRequest(problem, param=f"{path}.encrypted_content")
    return make_standing_for(item.id, msgspec.json.decode(item.body, type=JsonObject), content)


class _Sealed(msgspec.Struct):
    encrypted_content: str = ""
