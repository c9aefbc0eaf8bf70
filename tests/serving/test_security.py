"""Nobody gets in without the token, under a foreign name or from a foreign page, on any route."""

from __future__ import annotations

import json
import logging

import pytest
from starlette.routing import Mount
from starlette.testclient import TestClient

from formers import Error
from formers.serving.security import PROBES, JsonLogFormatter, strip_port
from formers.serving.settings import ServerLimits, ServerSettings
from tests.serving.small_models import open_client

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def locked_client(models):
    settings = ServerSettings(token=TOKEN, allowed_hosts=("models.test",), cors_origins=("https://pages.test",))
    with open_client(models, ["gpt2", "bert"], settings=settings) as client:
        yield client


def list_routes(client: TestClient) -> list[tuple[str, str]]:
    """Every route of a server with a method that it takes; parts of paths are filled in."""
    found = []
    for path, methods in client.app.openapi()["paths"].items():
        filled = path.replace("{model}", "bert").replace("{task}", "fill-mask")
        found += [(method.upper(), filled) for method in methods]
    mounts = [route.path for route in client.app.routes if isinstance(route, Mount)]
    return [*found, *(("GET", f"{path}/") for path in mounts), ("GET", "/openapi.json"), ("GET", "/no-such-route")]


def test_every_route_asks_for_the_token(locked_client):
    routes = list_routes(locked_client)
    assert len(routes) >= 8
    for method, path in routes:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            answer = locked_client.request(method, path, headers=headers)
            if path in PROBES:
                assert answer.status_code == 200
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.json()["error"]
                assert answer.headers["www-authenticate"] == "Bearer"
        allowed = locked_client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert allowed.status_code not in (401, 403), (method, path)


@pytest.mark.parametrize("host", [
    "evil.test", "evil.test:8000", "localhost.evil.test", "127.0.0.1.evil.test", "", "models.test.evil", "10.0.0.1",
    "[::2]:8000", "127.0.0.1:8000, evil.test",
])  # fmt: skip
def test_every_route_refuses_a_foreign_host(locked_client, host):
    for method, path in list_routes(locked_client):
        answer = locked_client.request(method, path, headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == (200 if path in PROBES else 403), (method, path)


@pytest.mark.parametrize(
    "origin", ["https://evil.test", "null", "http://127.0.0.1:9999", "https://pages.test.evil", "x"]
)
def test_every_route_refuses_a_foreign_origin(locked_client, origin):
    for method, path in list_routes(locked_client):
        answer = locked_client.request(method, path, headers={"Origin": origin, "Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == (200 if path in PROBES else 403), (method, path)
        assert "access-control-allow-origin" not in answer.headers


def test_named_hosts_and_origins_get_in(locked_client):
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    for host in ("localhost:1234", "127.0.0.1", "[::1]:8000", "models.test", "MODELS.test:443"):
        assert locked_client.get("/v1/models", headers={"Host": host, **allowed}).status_code == 200
    own = locked_client.get("/v1/models", headers={"Origin": "http://127.0.0.1:8000", **allowed})
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers
    page = locked_client.get("/v1/models", headers={"Origin": "https://pages.test", **allowed})
    assert page.headers["access-control-allow-origin"] == "https://pages.test"
    ask = {"Origin": "https://pages.test", "Access-Control-Request-Method": "POST"}
    assert locked_client.options("/v1/completions", headers=ask).status_code == 200
    assert locked_client.options("/v1/completions", headers={**ask, "Origin": "https://evil.test"}).status_code == 403


def test_a_browser_gets_the_token_as_a_cookie(locked_client):
    answer = locked_client.get(f"/playground/?token={TOKEN}&x=1", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/playground/?x=1"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    name, value = answer.headers["set-cookie"].partition(";")[0].split("=")
    locked_client.cookies.clear()
    assert locked_client.get("/v1/models", headers={"Cookie": f"{name}={value}"}).status_code == 200
    locked_client.cookies.clear()
    assert locked_client.get("/v1/models", headers={"Cookie": f"{name}=wrong"}).status_code == 401
    assert locked_client.get("/playground/?token=wrong", follow_redirects=False).status_code == 401
    assert locked_client.get(f"/v1/models?token={TOKEN}").status_code == 401, "in the address of a page alone"


def test_bodies_are_limited_as_declared_and_as_sent(models):
    with open_client(models, ["bert"], max_body_bytes=200) as client:
        assert client.post("/v1/embeddings", json={"input": "x" * 100}).status_code == 200
        long = json.dumps({"input": "x" * 300}).encode()
        for content in (long, iter([long[:150], long[150:]])):
            answer = client.post("/v1/embeddings", content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
            assert "200 bytes" in answer.json()["error"]["message"]
        bad = client.post("/v1/embeddings", content=b"{}", headers={"Content-Length": "12345678901234567890123"})
        assert bad.status_code in (400, 413)


def test_a_server_that_others_can_reach_needs_a_token():
    with pytest.raises(Error, match="no token"):
        ServerSettings(host="0.0.0.0")
    assert ServerSettings(host="0.0.0.0", token=TOKEN).host == "0.0.0.0"
    assert ServerSettings().host == "127.0.0.1"
    for bad in ("short", "with\nnewline", "비밀번호입니다아"):
        with pytest.raises(Error, match="8 or more"):
            ServerSettings(token=bad)
    with pytest.raises(Error, match="no origin"):
        ServerSettings(cors_origins=("*",))
    with pytest.raises(Error, match="at least 1"):
        ServerLimits(max_queue=0)


def test_answers_carry_safe_headers(client):
    headers = client.get("/v1/models").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]


def test_logs_hold_no_texts(client, caplog):
    log = logging.getLogger("formers.serving")
    log.propagate = True
    with caplog.at_level(logging.INFO, "formers.serving"):
        client.post("/v1/completions", json={"model": "gpt2", "prompt": "a secret word", "max_tokens": 3})
        client.post("/v1/completions", json={"model": "a secret model", "prompt": "x"})
        client.get("/a/secret/path?secret=1")
        client.get("/playground/secret.js")
        client.get("/playground/")
    lines = [JsonLogFormatter().format(record) for record in caplog.records if record.message == "request"]
    assert len(lines) == 5
    assert not any("secret" in line for line in lines)
    routes = [json.loads(line)["route"] for line in lines[2:]]
    assert routes == ["none", "/playground", "/playground"], "a page's files have their folder's route"
    first = json.loads(lines[0])
    assert (first["route"], first["status"], first["model"]) == ("/v1/completions", 200, "gpt2")
    assert first["new_tokens"] == 3


def test_a_log_line_of_an_exception_does_not_quote_it():
    try:
        raise ValueError("a secret text")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "file", 1, "failure", (), info)
    line = json.loads(JsonLogFormatter().format(record))
    assert "secret" not in str(line)
    assert line["exception"].startswith("ValueError at ")


@pytest.mark.parametrize(("header", "name"), [
    ("Example.org", "example.org"), ("example.org:80", "example.org"), ("[::1]:80", "::1"), ("[::1]", "::1"),
    ("127.0.0.1", "127.0.0.1"), ("a:b", "a:b"),
])  # fmt: skip
def test_the_port_is_no_part_of_a_host(header, name):
    assert strip_port(header) == name
