"""Inference over plain HTTP: what waits, what is refused and when to come again, what runs together, and how bodies may look."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from modelpool.testing.models import scale
from tests.integration import zoo
from tests.integration.serving import RunningServer, ask, infer, question, serving, until

X = question(x=np.array([1.0], np.float32))
ROW = np.ones((1, 4), np.float32)
LOAD_S = 1.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Few may wait, and a model that takes its time to load."""
    folder = tmp_path_factory.mktemp("waiting")
    models = folder / "models"
    zoo.onnx_add_sub(models / "batched")
    zoo.python_slow(models / "slow", load_s=LOAD_S)
    scale(models / "triple.onnx", 3.0)
    with serving(folder, "--device", "cpu=1GiB", "--set", "queue_bound=4", "--set", "body_limit=1MiB") as found:
        yield found


@pytest.fixture
def slow(server: RunningServer) -> RunningServer:
    """The server, without the slow model in memory."""
    server.client.post("/v2/repository/models/slow/unload")
    assert not server.view("slow")["copies"]
    return server


def loads(server: RunningServer, model: str) -> int:
    return len(
        [one for one in server.client.get("/decisions", params={"model_name": model}).json()["decisions"] if one["kind"] == "loaded"]
    )


# --- waiting ------------------------------------------------------------------------------------------------------------------------
def test_one_load_serves_all_who_wait_and_the_rest_are_told_when_to_return(slow: RunningServer) -> None:
    before = loads(slow, "slow")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: infer(slow, "slow", question(x=np.array([number], np.float32))), range(10)))
    served = [(number, one) for number, one in enumerate(answers) if one.status_code == 200]
    refused = [one for one in answers if one.status_code != 200]
    assert len(served) == 4
    for number, one in served:
        assert one.json()["outputs"][0]["data"] == [number]
        assert one.headers["modelpool-queued"] == "1"
    for one in refused:
        assert (one.status_code, one.json()["code"]) == (503, "queue_full")
        assert "maximum queue size" in one.json()["error"]
        assert int(one.headers["retry-after"]) >= 1
    assert loads(slow, "slow") - before == 1


def test_a_full_queue_holds_up_no_other_model(slow: RunningServer) -> None:
    ask(slow, "triple", x=np.array([1.0], np.float32))
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(infer, slow, "slow", X) for _ in range(4)]
        until(lambda: slow.view("slow")["queue"] == 4, "the full queue")
        assert ask(slow, "triple", x=np.array([2.0], np.float32)) == {"y": [6.0]}
        assert slow.view("slow")["queue"] == 4
        assert [one.result().status_code for one in waiting] == [200] * 4


def test_a_request_may_say_how_long_it_waits(slow: RunningServer) -> None:
    answer = infer(slow, "slow", {**X, "parameters": {"timeout": 100_000}})
    assert (answer.status_code, answer.json()["code"]) == (504, "timeout")
    assert "timeout expired" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) >= 1
    answer = infer(slow, "slow", {**X, "parameters": {"timeout": 30_000_000}})  # the load was not given up, and this one has the time
    assert answer.status_code == 200


def test_a_client_that_hangs_up_waits_no_more(slow: RunningServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        infer(slow, "slow", X, timeout=0.3)
    until(lambda: slow.view("slow")["queue"] == 0, "the end of the wait")
    outcomes = [line for line in slow.client.get("/metrics").text.splitlines() if 'model="slow"' in line and "cancelled" in line]
    assert outcomes
    assert outcomes[0].endswith(" 1.0")


def test_a_resident_model_makes_nobody_wait(server: RunningServer) -> None:
    ask(server, "triple", x=np.array([2.0], np.float32))
    assert "modelpool-queued" not in infer(server, "triple", X).headers


def test_keep_alive_of_a_request(server: RunningServer) -> None:
    assert infer(server, "triple", {**X, "parameters": {"keep_alive": 0}}).status_code == 200
    until(lambda: not server.view("triple")["copies"], "the end of its stay")
    assert infer(server, "triple", {**X, "parameters": {"keep_alive": "10m"}}).status_code == 200
    assert server.view("triple")["state"] == "READY"


# --- batches ------------------------------------------------------------------------------------------------------------------------
def test_64_at_once_take_at_most_16_runs(server: RunningServer) -> None:
    host, _, port = server.about["url"].removeprefix("http://").rpartition(":")
    ask(server, "batched", a=ROW, b=ROW)

    def runs() -> int:
        (row,) = server.client.get("/v2/models/batched/stats").json()["model_stats"]
        return int(row["execution_count"])

    def together() -> int:
        before = runs()
        for number, sock in enumerate(sockets):
            body = json.dumps(question(a=ROW * number, b=ROW)).encode()
            sock.sendall(b"POST /v2/models/batched/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        for number, sock in enumerate(sockets):
            answer = sock.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            outputs = {one["name"]: one["data"] for one in json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"]}
            assert outputs == {"sum": [number + 1.0] * 4, "difference": [number - 1.0] * 4}
        return runs() - before

    sockets = [socket.create_connection((host, int(port)), timeout=30) for _ in range(64)]
    try:
        assert min(together() for _ in range(3)) <= 16  # a busy machine may keep the first ones apart
    finally:
        for sock in sockets:
            sock.close()


def test_one_bad_request_does_not_spoil_the_others_of_its_batch(server: RunningServer) -> None:
    ask(server, "batched", a=ROW, b=ROW)
    good, bad = question(a=ROW, b=ROW), question(a=ROW, b=np.ones((1, 5), np.float32))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: infer(server, "batched", bad if number % 4 == 0 else good), range(64)))
    for number, answer in enumerate(answers):
        assert answer.status_code == (400 if number % 4 == 0 else 200), answer.text
        if number % 4:
            assert answer.json()["outputs"][0]["data"] == [2.0] * 4


# --- the form of requests -----------------------------------------------------------------------------------------------------------
def test_curl_like_requests(server: RunningServer) -> None:
    text = json.dumps(X).encode()
    for body, headers in (
        (text, {}),
        (b"\n  " + json.dumps(X, indent=4).encode() + b"\n", {"content-type": "application/x-www-form-urlencoded"}),
        (gzip.compress(text), {"content-encoding": "gzip"}),
        (text, {"expect": "100-continue"}),
    ):
        answer = infer(server, "triple", body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {
            "model_name": "triple",
            "model_version": "1",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [3.0]}],
        }


def test_a_body_in_chunks(server: RunningServer) -> None:
    def chunks() -> Iterator[bytes]:
        for start in range(0, len(text), 7):
            yield text[start : start + 7]

    text = json.dumps(X).encode()
    answer = server.client.post("/v2/models/triple/infer", content=chunks())
    assert answer.json()["outputs"][0]["data"] == [3.0]


def test_nested_lists_and_numbers_that_are_not_finite(server: RunningServer) -> None:
    tensors = [{"name": name, "datatype": "FP32", "shape": [2, 4], "data": [[1, 2, 3, 4], [5, 6, 7, 8]]} for name in "ab"]
    answer = infer(server, "batched", {"inputs": tensors}).json()
    assert answer["outputs"][0] == {
        "name": "sum",
        "datatype": "FP32",
        "shape": [2, 4],
        "data": [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0],
    }
    answer = infer(server, "triple", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [NaN, Infinity, -Infinity]}]}')
    assert answer.text.endswith('"data":[NaN,Infinity,-Infinity]}]}')


@pytest.mark.parametrize("compressed", [False, True])
def test_a_body_that_is_too_large_is_refused(server: RunningServer, compressed: bool) -> None:
    body = b" " * (2 << 20)
    headers = {"content-encoding": "gzip"} if compressed else {}
    answer = infer(server, "triple", gzip.compress(body) if compressed else body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert "1048576" in answer.json()["error"]
    assert "body_limit" in answer.json()["error"]
    assert ask(server, "triple", x=np.array([2.0], np.float32)) == {"y": [6.0]}


def test_other_bodies_are_bounded_too(server: RunningServer) -> None:
    for method, path in (("POST", "/models"), ("POST", "/v2/repository/index"), ("POST", "/v2/repository/models/triple/load")):
        answer = server.client.request(method, path, content=b" " * (2 << 20))
        assert answer.status_code == 413, path
        assert answer.json()["code"] == "body_too_large"


def test_many_clients_over_all_models_get_right_answers(server: RunningServer) -> None:
    faults: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            value = float(number * 100 + turn)
            if turn % 2:
                found = ask(server, "triple", x=np.array([value], np.float32))["y"]
                expected = [value * 3]
            else:
                found = ask(server, "batched", a=ROW * value, b=ROW)["sum"]
                expected = [value + 1] * 4
            if found != expected:
                faults.append(f"{value}: {found}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_server_that_was_told_to_stop_refuses_new_loads(tmp_path: Path) -> None:
    zoo.python_slow(tmp_path / "models" / "slow", load_s=LOAD_S)
    scale(tmp_path / "models" / "triple.onnx", 3.0)
    with serving(tmp_path, "--device", "cpu=1GiB") as server, httpx.Client(base_url=server.about["url"], trust_env=False) as second:
        assert second.get("/v2/health/ready").status_code == 200
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(infer, server, "slow", X)
            until(lambda: server.view("slow")["queue"] == 1, "the request that waits")
            server.process.terminate()
            assert waiting.result().status_code == 200  # what was accepted is finished
        assert server.process.wait(20) == 0
