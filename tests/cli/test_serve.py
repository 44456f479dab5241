"""`clustersim serve`: what it refuses, what it runs and with which limits, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import CLUSTER, JOB, LONG, filled, forms, served
from until import until

pytest.importorskip("uvicorn", reason='no uvicorn here; pip install "clustersim[serve]"')

from clustersim import extras
from clustersim.cli.options import ObjectiveName
from clustersim.errors import InputError
from clustersim.report import store
from clustersim.serve import limited
from clustersim.serve.children import SECRET, ChildLimits, Children, _environment
from clustersim.serve.guard import LOOPBACK, Guard, RateLimiter
from clustersim.serve.results import ResultsFolder
from clustersim.serve.site import Site, login

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and processes of Linux")
TOKEN = "0123456789abcdef-token"
SHORT = {"topology": CLUSTER, "workload": str(JOB), "set": ["predictor=roofline"], "options": {"global_batch": "12"}}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(results):
    with served(results, "--workload", str(JOB), "--at-once", "1", "--waiting", "1") as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Stop what a test has begun."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        children = server.ask("/api/state").json["children"]
        active = [one["number"] for one in children if one["state"] in ("waiting", "running")]
        for number in active:
            server.ask("/api/stop", {"number": number})
        for number in active:
            server.wait(number, "stopped", "done", "failed")


# what is there


def test_it_lists_what_is_there_and_nothing_else(server, results):
    rows = {row["name"]: row for row in server.ask("/api/state").json["results"]}
    assert rows.keys() == {"one", "deep/two", "sweep"}
    summary = store.read_summary(results / "one")
    assert {key: rows["one"][key] for key in ("step_time_s", "tokens_per_s", "mfu")} == {
        key: summary[key] for key in ("step_time_s", "tokens_per_s", "mfu")
    }
    assert rows["deep/two"]["report"] and not rows["one"]["report"]
    assert (rows["sweep"]["points"], rows["sweep"]["complete"]) == (2, True)


def test_files_are_those_of_the_folder(server, results):
    for name in ("summary.json", "trace.json.gz", "spans.parquet"):
        answer = server.ask(f"/file/one/{name}")
        assert answer.body == (results / "one" / name).read_bytes()
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    page = server.ask("/file/deep/two/report.html")
    assert page.body == (results / "deep/two/report.html").read_bytes()
    assert page.headers["content-type"].startswith("text/html")
    assert "sandbox allow-scripts;" in page.headers["content-security-policy"]  # no word of it reaches the server


def test_damaged_and_hostile_results_do_no_harm(tmp_path):
    """Whatever lies in a folder, the list is there; what cannot be read of a result is left out."""
    for name, manifest, summary in (
        ("no-json", "{", "{"),
        ("deep", "[" * 100_000, ""),
        ("numbers", '{"clustersim": "1", "command": "run"}', '{"step_time_s": NaN, "mfu": "<b>", "cluster": 3}'),
        ("letters", '{"clustersim": "1", "command": "\\ud800<script>"}', "[]"),
        ("list", '{"clustersim": "1", "command": "run", "options": {"overrides": [1]}, "inputs": 3}', "{}"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest)
        (tmp_path / name / "summary.json").write_text(summary)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/manifest.json")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")  # noqa: PTH102 - no Unicode
    shutil.copy(tmp_path / "numbers/manifest.json", os.fsencode(tmp_path) + b"/\xff/manifest.json")
    rows = ResultsFolder.of(tmp_path).rows()
    assert {row["name"] for row in rows} == {"no-json", "deep", "numbers", "letters", "list"}
    json.dumps(rows, allow_nan=False, ensure_ascii=False).encode()
    with served(tmp_path) as server:
        assert server.ask("/").status == 200
        for row in rows:
            assert server.ask(f"/result/{row['name']}").status == 200
        assert server.ask("/api/page", {"results": ["list"]}).status == 202


# what leads out of the folder

ESCAPES = shlex.split("""
/file/../outside/summary.json /file/%2e%2e/outside/summary.json /file/..%2foutside/summary.json
/file/%2e%2e%2foutside%2fsummary.json /file/one/../../outside/summary.json /file/one%2f..%2f..%2foutside/summary.json
/file/..%5coutside/summary.json /file/%252e%252e/outside/summary.json /file/....//outside/summary.json
/file//{outside}/summary.json /file/%2f{outside}/summary.json /file/{outside}/summary.json
/file/link/summary.json /file/link-in/../../outside/summary.json /file/linked/summary.json /file/linked/report.html
/file/one/..%2f..%2fsecret.txt /file/one/%2e%2e%2fsecret.txt /file/one/secret.txt /file/one/summary.json%00
/file/./one/summary.json /file/one//summary.json /file/one/.lock /../secret.txt /secret.txt
/result/../outside /result/linked /result/%2e%2e%2foutside /result/link /result/ /result/.
""")


@pytest.fixture(scope="module")
def linked(results):
    """Links that lead out: a whole folder, and files of one that is inside; one that stays inside."""
    (results / "link").symlink_to(results.parent / "outside", target_is_directory=True)
    shutil.copytree(results / "one", results / "linked")
    for name in ("summary.json", "report.html"):
        (results / "linked" / name).unlink(missing_ok=True)
        (results / "linked" / name).symlink_to(results.parent / "outside" / name)
    (results / "link-in").symlink_to(results / "one", target_is_directory=True)
    (results / "ring").symlink_to(results / "ring")
    yield results
    for name in ("link", "link-in", "ring"):
        (results / name).unlink()
    shutil.rmtree(results / "linked")


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out_of_the_folder(server, linked, path):
    answer = server.ask(path.format(outside=str(linked.parent / "outside").lstrip("/")))
    assert answer.status == 404 and b"SECRET" not in answer.body


def test_links_are_neither_listed_nor_followed_out(server, linked):
    state = server.ask("/api/state")
    assert {row["name"] for row in state.json["results"]} == {"one", "deep/two", "sweep"}
    assert b"SECRET" not in state.body
    assert server.ask("/file/link-in/summary.json").status == 200  # stays inside
    for path in ("/api/page", "/api/compare"):
        for name in ("link", "linked", "../outside", str(linked.parent / "outside"), "", "one\0", "\udcff"):
            assert server.ask(path, {"results": [name]}).status == 404


# who may ask


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8765"},
        {"Host": ""},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "192.168.0.1"},
        {"Host": "[::2]:80"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
    ids=str,
)
def test_other_hosts_and_origins_are_refused(server, headers):
    before = len(server.ask("/api/state").json["children"])
    for path, body in (("/", None), ("/api/state", None), ("/file/one/summary.json", None), ("/api/run", SHORT)):
        assert server.ask(path, body, **headers).status == 403
    assert len(server.ask("/api/state").json["children"]) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:9999"},  # through a tunnel
        {"Host": "[::1]:80"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},  # a link
    ],
    ids=str,
)
def test_its_own_pages_and_links_to_it_are_answered(server, headers):
    assert server.ask("/", **headers).status == 200


def test_a_page_of_another_site_cannot_start_a_run_by_a_form(server):
    body = json.dumps(SHORT).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert server.ask("/api/run", body, Content_Type=kind).status == 415
    assert server.ask("/api/run").status == 405  # nor by an address


def test_every_answer_says_what_a_browser_may_do(server):
    for path in ("/", "/result/one", "/compare?of=one&of=deep/two", "/nothing", "/api/state", "/file/one/summary.json"):
        headers = server.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "'unsafe-eval'" not in policy and "http" not in policy
        assert "script-src 'unsafe-inline'" not in policy
        assert (
            headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
        )


def test_without_a_token_only_loopback_is_listened_at(call, tmp_path):
    (tmp_path / "results").mkdir()
    code, out, err = call("serve", "--host", "0.0.0.0")
    assert (code, out) == (2, "")
    assert (
        err
        == "clustersim: --host 0.0.0.0: others could start runs here; set a token in CLUSTERSIM_TOKEN, or leave --host out\n"
    )


@pytest.fixture(scope="module")
def guarded(results):
    with served(results, "--host", "0.0.0.0", CLUSTERSIM_TOKEN=TOKEN) as found:
        yield found


def test_the_token_is_asked_of_all(guarded):
    for path, body in (("/api/state", None), ("/file/one/summary.json", None), ("/nothing", None), ("/api/run", SHORT)):
        assert guarded.ask(path, body).status == 401
        assert guarded.ask(path, body, Cookie=f"clustersim-{guarded.port}={TOKEN}").status == 401
    assert guarded.ask("/api/state", Authorization=f"Bearer {TOKEN[:-1]}").status == 401
    page = guarded.ask("/", Accept="text/html")
    assert page.status == 401 and b"asks for the token" in page.body and b'id="data">{}<' in page.body


def test_the_token_opens_by_header_and_by_cookie(guarded):
    assert guarded.ask("/api/state", Authorization=f"Bearer {TOKEN}").status == 200
    answer = guarded.ask("/login", {"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
    name = cookie.partition(";")[0]
    assert guarded.ask("/api/state", Cookie=name).status == 200
    assert guarded.ask("/api/state", Cookie=name[:-1]).status == 401
    assert guarded.ask("/api/state", Cookie=name, Origin="http://evil.example").status == 403
    assert guarded.ask("/", Host="10.0.0.7", Cookie=name).status == 200  # any address of the machine
    assert guarded.ask("/", Host="evil.example", Cookie=name).status == 403


def test_who_guesses_has_to_wait(guarded):
    said = [guarded.ask("/login", {"token": f"{TOKEN}{i}"}).status for i in range(12)]
    assert said[-1] == 429 and 401 in said
    assert guarded.ask("/login", {"token": TOKEN}).status == 429  # also where the guess is right
    assert guarded.ask("/api/state", Authorization=f"Bearer {TOKEN}").status == 401


def test_no_command_gets_the_token():
    assert SECRET not in _environment({SECRET: TOKEN, "HOME": "/"})


@pytest.mark.parametrize("token", ["short", "with a\nline in it, and long", "ééééééééééééééééé"])
def test_a_bad_token_is_one_sentence(call, tmp_path, token):
    (tmp_path / "results").mkdir()
    code, out, err = call("serve", "--token", token)
    assert (code, out) == (2, "")
    assert err == "clustersim: the token has to be 16 or more printable ASCII letters; openssl rand -hex 16 makes one\n"


# floods


def test_requests_are_limited(server):
    time.sleep(2)
    said = [server.once("/nothing") for _ in range(200)]
    assert [one.status for one in said[:40]] == [404] * 40
    assert (said[-1].status, said[-1].headers["retry-after"]) == (429, "1")
    assert server.ask("/nothing").status == 404  # later


def test_the_clients_that_are_counted_do_not_pile_up():
    rates = RateLimiter(1.0, 2)
    assert [rates.count("a") for _ in range(4)] == [False, False, True, True]
    for i in range(5000):
        rates.count(str(i))
    assert len(rates._left) <= 1000


def test_runs_at_once_and_waiting_are_limited(server):
    first, second = server.begin(), server.begin()
    answer = server.ask("/api/run", LONG)
    assert (answer.status, answer.text) == (429, "1 run and 1 wait already; stop one, or wait for one to end.")
    for path, body in (("/api/page", {"results": ["one"]}), ("/api/compare", {"results": ["one", "deep/two"]})):
        assert server.ask(path, body).status == 429
    server.wait(first, "running")
    assert server.child(second)["state"] == "waiting"
    assert len(server.processes()) == 1
    server.ask("/api/stop", {"number": first})
    server.wait(second, "running")


def test_bodies_are_limited(server):
    large = server.ask("/api/run", {"topology": "x" * 70_000})
    assert (large.status, large.text) == (413, "Too large: at most 64 KiB are read.")
    announced = server.ask("/api/run", b"{}", Content_Type="application/json", Content_Length="99999999999999999999")
    assert announced.status == 413
    time.sleep(1)  # else it may be one request too many
    with socket.create_connection(("127.0.0.1", server.port), 10) as sent:  # says no length
        sent.sendall(b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        sent.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        sent.sendall((b"1000\r\n" + b"x" * 4096 + b"\r\n") * 17)
        assert sent.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.slow
def test_who_says_nothing_is_not_waited_for(server):
    """Half a request, or none, on more connections than there may be: others are heard, and in ten seconds all are gone."""
    silent = [socket.create_connection(("127.0.0.1", server.port), 15) for _ in range(120)]
    for one in silent[::2]:
        with suppress(ConnectionError):  # those that made room
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX:")
    begun = time.monotonic()
    assert [server.once("/nothing").status for _ in range(10)] == [404] * 10
    assert time.monotonic() - begun < 5
    for one in silent:
        with one, suppress(ConnectionError):
            assert one.recv(1) == b""
    assert server.ask("/nothing").status == 404


WORDS = shlex.split("/ .. %2e file result api run one deep compare summary.json report.html")
WORDS += ["\0", "\\", "é", "\udc80"]
PATHS = shlex.split(
    "/ /api/run /api/page /api/compare /api/stop /api/state /login /compare /result/one /file/one/summary.json"
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["one", CLUSTER, "tp=2"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tp", "number", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = ("topology", "workload", "options", "set", "results", "number", "token")


@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT"]),
    path=st.sampled_from(PATHS) | st.lists(st.sampled_from(WORDS), max_size=6).map(lambda words: "/" + "".join(words)),
    query=st.sampled_from([b"", b"of=one&of=x", b"of=%ff&of=%00", b"=&&of"]),
    body=st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=30),
    header=st.sampled_from(["cookie", "authorization", "origin", "range", "accept", "x"]),
    value=st.binary(max_size=20) | st.sampled_from([b"Bearer \xff", b"bytes=1-2", b"http://localhost", b"text/html"]),
    token=st.sampled_from(["", TOKEN]),
)
def test_nothing_that_is_asked_is_an_error_of_the_server(results, method, path, query, body, header, value, token):
    """Whatever is sent, the answer is one that is meant; and what lies beside the folder is in none."""
    children = Children(ChildLimits(0, 0, 0, 0))  # no run may begin
    app = Site(ResultsFolder.of(results), "results", forms(), children, results).app()
    guard = Guard(app, LOOPBACK, token)
    app.router.routes.append(login(guard))
    sent = [
        ("host", b"localhost"),
        ("content-type", b"application/json"),
        ("content-length", b"%d" % len(body)),
        (header, value),
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "client": ("::1", 1),
        "root_path": "",
    }
    scope |= {"headers": [(name.encode(), text) for name, text in sent], "scheme": "http", "server": ("localhost", 80)}
    asked, answered = [{"type": "http.request", "body": body}], []

    async def receive():
        return asked.pop() if asked else await asyncio.sleep(60)

    async def send(message):
        answered.append(message)

    asyncio.run(guard(scope, receive, send))
    assert answered[0]["status"] in (200, 400, 401, 403, 404, 405, 429)
    assert b"SECRET" not in b"".join(message.get("body", b"") for message in answered)


# what a form may say


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd", "../x", "~root/x", "{a: /etc/x}", "a/../../x", "neusight:/x", "\\x2fetc", "[1, ../x]", "a\nb",
        "x" * 501,
    ],
)  # fmt: skip
def test_no_value_names_a_file_elsewhere(value):
    form = forms()
    for asked in ({"options": {"predictor": value}}, {"set": [f"predictor={value}"]}):
        with pytest.raises(InputError, match=r"^predictor: "):
            form.command({"topology": CLUSTER, "workload": "gpt3", **asked})


@pytest.mark.parametrize("line", ["x", "=3", "--plugins=os:system", "a b=c", "", "$(x)=3"])
def test_a_line_of_the_form_is_a_key_and_a_value(line):
    with pytest.raises(InputError, match="each line is key=value"):
        forms().command({"topology": CLUSTER, "workload": "gpt3", "set": [line]})


def test_a_form_becomes_the_words_of_a_command():
    asked = {
        "topology": CLUSTER,
        "workload": str(JOB),
        "options": {"nic": "400Gb/s", "tp": "-1", "pp": ""},
        "set": ["a.b[0]=--x y"],
    }
    made = forms((), [JOB]).command(asked)
    assert made.words == ("run", CLUSTER, str(JOB), "--nic=400Gb/s", "--tp=-1", "--set=a.b[0]=--x y", "--html")
    assert made.shown == f"clustersim run {CLUSTER} {JOB} --nic 400Gb/s --tp -1 --set 'a.b[0]=--x y'"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"command": "sweep", "topology": CLUSTER, "options": {"tp": "1,2"}},
            ("sweep", CLUSTER, "gpt3", "--tp=1,2", "--workers=1"),
        ),
        (
            {"command": "optimize", "topology": CLUSTER, "options": {"objective": "rent", "unlikely": "yes"}},
            ("optimize", CLUSTER, "gpt3", "--objective=rent", "--unlikely"),
        ),
        (
            {"command": "plan", "options": {"tokens": "1T", "pareto": "yes"}, "set": ["training.recompute=full"]},
            ("plan", "gpt3", "--tokens=1T", "--pareto", "--set=training.recompute=full"),
        ),
    ],
)
def test_a_search_has_a_form_with_the_options_of_its_command(asked, words):
    assert forms().command({"workload": "gpt3", **asked}).words == words


def test_a_switch_is_yes_or_left_out():
    asked = {"command": "plan", "workload": "gpt3", "options": {"tokens": "1T", "pareto": "no"}}
    with pytest.raises(InputError, match=r"^pareto: write yes, or leave it out$"):
        forms().command(asked)


def test_fields_are_those_of_the_commands():
    fields = {one["command"]: {field["name"]: field for field in one["options"]} for one in forms().facts()["commands"]}
    assert fields["optimize"]["objective"]["values"] == [*get_args(ObjectiveName)]
    assert fields["run"]["schedule"]["values"] and not fields["sweep"]["schedule"]["values"]
    assert fields["plan"]["pareto"]["switch"] and fields["run"]["seq"]["flag"] == "--seq"
    named = {name for own in fields.values() for name in own}
    assert not named & {"plugins", "out", "topology", "machine", "costs", "reliability", "csv", "ray", "settings"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "--help", "gpt4", "", 3, None])
def test_only_listed_files_are_simulated(name):
    for room in ("topology", "workload"):
        with pytest.raises(InputError, match=f"^{room}: none of that name is listed here"):
            forms().command({"topology": CLUSTER, "workload": "gpt3"} | {room: name})


def test_only_options_of_run_are_taken():
    for options in ({"plugins": "os:system"}, {"out": "x"}, 3, ["tp"]):
        with pytest.raises(InputError, match=r"^options: "):
            forms().command({"topology": CLUSTER, "workload": "gpt3", "options": options})


# runs


SPLITS = {"topology": CLUSTER, "workload": "gpt2_large", "set": ["predictor=roofline"]}


def test_a_sweep_has_its_table_and_its_folder(server, results):
    asked = {"command": "sweep", **SPLITS, "options": {"tp": "1,2", "pp": "1,2", "global_batch": "16"}}
    child = server.wait(server.begin(asked), "done", "failed")
    assert (child["state"], child["error"]) == ("done", "")
    assert "tokens/s" in child["answer"] and "4 points were simulated" in child["answer"]
    assert (results / child["result"] / "points.parquet").is_file()
    shutil.rmtree(results / child["result"])


def test_a_search_says_its_best_and_keeps_it_if_it_is_stopped(server):
    asked = {"command": "optimize", **SPLITS, "options": {"global_batch": "16", "top": "2"}}
    done = server.wait(server.begin(asked), "done", "failed")
    assert (done["state"], done["error"]) == ("done", "")
    assert "the best one alone:" in done["answer"]
    asked = {"command": "optimize", "topology": "fattree_3840", "workload": "llama3_405b", "options": {"nodes": "128"}}
    number = server.begin(asked)
    until(lambda: re.match(r"simulate: [1-9].* none better", server.child(number)["step"]), 120)
    assert server.ask("/api/stop", {"number": number}).status == 200
    stopped = server.wait(number, "stopped", "done", "failed", seconds=90)
    assert stopped["state"] == "stopped"
    assert "ended early: " in stopped["answer"]


def test_a_run_is_that_of_the_command_line(server, results):
    number = server.begin(SHORT)
    child = server.wait(number, "done", "failed")
    name = f"{CLUSTER}-pipeline-global_batch12-predictor-roofline"
    assert (child["state"], child["result"], child["error"]) == ("done", name, "")
    assert child["command"] == f"clustersim run {CLUSTER} {JOB} --global-batch 12 --set predictor=roofline"
    assert {path.name for path in (results / name).iterdir()} == {
        *("manifest.json", "summary.json", "trace.json.gz", "report.html"),
        *("spans.parquet", "ranks.parquet", "links.parquet", "memory.parquet"),
    }
    shutil.rmtree(results / name)


def test_what_a_run_refuses_is_its_sentence(server):
    number = server.begin(SHORT | {"options": {"tp": "3"}})
    child = server.wait(number, "failed", "done")
    assert child["state"] == "failed" and "3" in child["error"] and "Traceback" not in child["error"]


def test_a_run_says_what_it_does_and_can_be_stopped(server, results):
    number = server.begin()
    until(lambda: server.child(number)["step"].startswith(("plan", "simulate")))
    server.ask("/api/stop", {"number": number})
    child = server.wait(number, "stopped", seconds=10)
    assert child["error"] == "" and child["result"] is None
    assert server.processes() == []
    assert not [path for path in results.iterdir() if path.name.startswith((".clustersim", "hgx"))]


def test_one_that_waits_can_be_stopped(server):
    first, second = server.begin(), server.begin()
    server.ask("/api/stop", {"number": second})
    assert server.wait(second, "stopped")["took_s"] is None
    assert server.child(first)["state"] == "running"


def test_the_page_of_a_result_is_written_by_its_command(server, results):
    for name in ("one", "sweep"):
        answer = server.ask("/api/page", {"results": [name]})
        child = server.wait(answer.json["number"], "done", "failed")
        assert (child["state"], child["result"]) == ("done", name)
        assert server.ask(f"/file/{name}/report.html").status == 200
        (results / name / "report.html").unlink()


def test_a_comparison_is_that_of_the_command_line(server, results, command_line):
    answer = server.ask("/api/compare", {"results": ["one", "deep/two"]})
    code, out, _ = command_line("compare", "--json", str(results / "one"), str(results / "deep/two"))
    assert code == 0 and answer.status == 200
    shown = answer.json.pop("shown")
    assert {**answer.json} == {**json.loads(out), "shown": shown}
    assert server.ask("/api/compare", {"results": ["one", "sweep"]}).status == 400


def test_a_result_that_names_code_runs_none(results, tmp_path):
    """Neither what a manifest names, nor a module that lies where the server was started."""
    marker = tmp_path / "ran"
    for name in ("evil", "clustersim", "resource", "numpy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    evil = tmp_path / "results/evil"
    shutil.copytree(results / "one", evil)
    manifest = json.loads((evil / "manifest.json").read_text())
    manifest["options"]["plugins"] = ["evil:build"]
    manifest["options"]["overrides"]["predictor"] = "evil:build"
    (evil / "manifest.json").write_text(json.dumps(manifest))
    with served(tmp_path / "results", "--workload", str(JOB), cwd=tmp_path) as server:
        answer = server.ask("/api/page", {"results": ["evil"]})
        child = server.wait(answer.json["number"], "failed", "done")
        assert child["state"] == "failed" and "plug-ins" in child["error"]
        run = server.begin(SHORT | {"set": ["predictor=evil:build"]})
        assert server.wait(run, "failed", "done")["state"] == "failed"
    assert not marker.exists()


def test_a_run_has_seconds(tmp_path):
    with served(tmp_path, "--seconds", "2") as server:
        child = server.wait(server.begin(), "failed", "done")
        assert child["error"] == "took longer than the 2 s that the server allows; raise --seconds"
        assert server.processes() == []


def test_a_run_has_memory(monkeypatch):
    code = "from clustersim.serve.limited import limit; limit(1 << 30, 9); bytearray(1 << 29); bytearray(2 << 30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.strip().endswith("MemoryError")

    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(limited.runpy, "run_module", exhausted)
    monkeypatch.setattr(limited, "limit", lambda *_: None)
    monkeypatch.setattr(limited, "_end_with_the_server", lambda: None)
    monkeypatch.setattr(limited.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["", str(1 << 30), "9", "run"])
    with pytest.raises(
        SystemExit, match=r"^clustersim: needs more than the 1 GiB that the server allows; raise --memory$"
    ):
        limited.main()


# how it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_it_ends_with_all_that_it_has_begun(tmp_path, number):
    with served(tmp_path, TMPDIR=str(tmp_path / "..")) as server:
        run = server.begin()
        server.wait(run, "running")
        [child] = server.processes()
        server.process.send_signal(number)
        out, err = server.process.communicate(timeout=20)
        assert (server.process.returncode, out, err) == (0, "", "")
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.parent.glob("clustersim-serve-*"))


def test_a_server_that_is_killed_takes_its_runs_with_it(tmp_path):
    with served(tmp_path, TMPDIR=str(tmp_path)) as server:
        server.wait(server.begin(), "running")
        [child] = server.processes()
        server.process.kill()
        until(lambda: not Path(f"/proc/{child}").exists(), 10)


def test_a_port_that_is_taken_is_one_sentence(call, tmp_path):
    (tmp_path / "results").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = call("serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert err == f"clustersim: --port {port}: is taken on 127.0.0.1; give another, or 0 for any\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothere"], "nothere: no such folder; give the folder that results are in, or make it with mkdir"),
        (["file"], "file: is not a folder; give the folder that results are in, or make it with mkdir"),
        (["--host", "x..y"], "--host x..y: is not an address of this machine; leave it out for 127.0.0.1"),
        (["--memory", "8"], "--memory: '8' has no unit; write a size with one, like 80GiB"),
        (["--memory", "1MiB"], "--memory 1MiB: a run needs 1 GiB to begin with; give as much or more"),
        (["--workload", "no.yaml"], "no.yaml: no such file; give a YAML file, which the form then lists"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_sentence(call, tmp_path, words, said):
    (tmp_path / "file").touch()
    (tmp_path / "results").mkdir()
    assert call("serve", *words) == (2, "", f"clustersim: {said}\n")


def test_a_result_is_no_folder_of_results(call, results):
    code, _, err = call("serve", str(results / "one"))
    assert (code, err) == (
        2,
        f"clustersim: {results / 'one'}: is one result; give the folder that it lies in: {results}\n",
    )


def test_without_the_extra_the_command_is_named(call, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    said = 'clustersim: `clustersim serve` needs uvicorn, which is not installed; run pip install "clustersim[serve]"\n'
    assert call("serve") == (2, "", said)
