"""What search services answer, in the shapes that their documentation shows."""

from tests.fakes.web import Answer, as_json

BRAVE = as_json(
    {
        "type": "search",
        "query": {
            "original": "postgres ranges",
            "show_strict_warning": False,
            "is_navigational": False,
            "country": "us",
            "bad_results": False,
            "more_results_available": True,
        },
        "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": [], "side": []},
        "web": {
            "type": "search",
            "results": [
                {
                    "title": "Range Types &amp; Multiranges",
                    "url": "https://www.postgresql.org/docs/rangetypes.html",
                    "is_source_local": False,
                    "description": "<strong>Range</strong> types are data types that represent a range of values.",
                    "page_age": "2026-09-25T00:00:00",
                    "profile": {"name": "PostgreSQL", "url": "https://www.postgresql.org", "img": "https://imgs.search.brave.com/x"},
                    "language": "en",
                    "type": "search_result",
                    "subtype": "generic",
                    "meta_url": {"scheme": "https", "netloc": "postgresql.org", "hostname": "www.postgresql.org", "path": "› docs"},
                },
                {"title": "A blog", "url": "https://blog.example.com/ranges", "description": "On ranges.", "type": "search_result"},
            ],
            "family_friendly": True,
        },
    }
)

BRAVE_WITHOUT_RESULTS = as_json({"type": "search", "query": {"original": "x", "bad_results": True, "more_results_available": False}})


def brave_refuses(status: int, code: str, secret: str) -> Answer:
    """Brave's error; like some services, it repeats the key here."""
    error = {
        "id": "7d0f",
        "status": status,
        "code": code,
        "detail": f"Request with {secret} refused",
        "meta": {"plan": "Free", "rate_limit": 1},
    }
    return as_json({"type": "ErrorResponse", "error": error, "time": 1716400000}, status)


TAVILY = as_json(
    {
        "query": "postgres ranges",
        "follow_up_questions": None,
        "answer": None,
        "images": [],
        "results": [
            {
                "url": "https://www.postgresql.org/docs/rangetypes.html",
                "title": "Range Types & Multiranges",
                "content": "Range types are data types\nthat represent a range of values.",
                "score": 0.91,
                "raw_content": None,
            },
            {"url": "https://blog.example.com/ranges", "title": "A blog", "content": "On ranges.", "score": 0.5, "raw_content": None},
        ],
        "response_time": 1.2,
        "request_id": "123e4567-e89b-12d3-a456-426614174111",
    }
)


def tavily_refuses(status: int, secret: str) -> Answer:
    """Tavily's error; 432 and 433 say that a plan's limit is reached."""
    return as_json({"detail": {"error": f"Unauthorized: {secret}"}}, status)


SEARXNG = as_json(
    {
        "query": "postgres ranges",
        "number_of_results": 0,
        "results": [
            {
                "url": "https://www.postgresql.org/docs/rangetypes.html",
                "title": "Range Types & Multiranges",
                "content": "Range types are data types that represent a range of values.",
                "engine": "duckduckgo",
                "engines": ["duckduckgo", "brave"],
                "parsed_url": ["https", "www.postgresql.org", "/docs/rangetypes.html", "", "", ""],
                "template": "default.html",
                "positions": [1, 2],
                "score": 3.0,
                "category": "general",
                "thumbnail": None,
            },
            {
                "url": "https://blog.example.com/ranges",
                "title": "A blog",
                "content": None,
                "engine": "brave",
                "score": 1.0,
                "category": "general",
            },
        ],
        "answers": [],
        "corrections": [],
        "infoboxes": [],
        "suggestions": ["postgres range types"],
        "unresponsive_engines": [["google", "Suspended: CAPTCHA"]],
    }
)

SEARXNG_WITHOUT_ENGINES = as_json(
    {
        "query": "x",
        "number_of_results": 0,
        "results": [],
        "answers": [],
        "unresponsive_engines": [["google", "timeout"], ["brave", "timeout"]],
    }
)
SEARXNG_WITHOUT_RESULTS = as_json({"query": "x", "number_of_results": 0, "results": [], "answers": [], "unresponsive_engines": []})
