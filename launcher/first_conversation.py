"""Two shell lines that show what Turnkeep is for: the second continues from the first, and sends nothing of it again."""

import json
from urllib.parse import urlsplit

SECRET = "The secret word is 'banana'. Please repeat the secret word."
QUESTION = "What is the secret word?"


def first_conversation(url: str, model: str, *, with_key: bool) -> tuple[str, str]:
    """The two lines; the first keeps its answer in a file, from which the second takes the id."""
    kept = f"/tmp/turnkeep-first-{urlsplit(url).port}.json"
    key = ' -H "authorization: Bearer $TURNKEEP_API_KEY"' if with_key else ""
    curl = f"curl -s {url}/v1/responses -H 'content-type: application/json'{key} -d "
    id_of_first = f"""python3 -c 'import json; print(json.load(open("{kept}"))["id"])'"""
    first = _quoted(_body(model, SECRET))
    second = _quoted(_body(model, QUESTION).removesuffix("}") + ', "previous_response_id": "') + f'"$({id_of_first})"' + _quoted('"}')
    return f"{curl}{first} | tee {kept}", f"{curl}{second}"


def _body(model: str, text: str) -> str:
    return json.dumps({"model": model, "input": text, "temperature": 0})


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
