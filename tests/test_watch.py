"""Following a run: in a terminal, as plain lines, and as a page on this machine only."""

import errno
import fcntl
import http.client
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import numpy as np
import pytest
from browser import Visit, chromium
from rich.console import Console
from run_folders import evaluation, make_run, metrics, write_lines

from aimrl import runs, watch
from aimrl.types import UserError

PROGRAM = "import sys; from pathlib import Path; from aimrl.watch import watch; watch(Path(sys.argv[1]), web='web' in sys.argv, poll=0.1)"


def going(folder, evals=3):
    """A run of 20,000 steps that has come to `evals` of its ten evaluations."""
    make_run(folder)
    for name, each in (("evals.jsonl", 1), ("metrics.jsonl", 2)):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: evals * each]))
    return folder


def go_on(folder, step):
    rng = np.random.default_rng(step)
    runs.append_line(folder / "metrics.jsonl", metrics(step, rng))
    runs.append_line(folder / "evals.jsonl", evaluation(step, 1.0, rng))


def shown(folder, width=80, **options):
    stream = io.StringIO()
    watch.watch(folder, once=True, console=Console(file=stream, width=width, **options))
    return stream.getvalue()


# --- what is said ------------------------------------------------------------------------------------------------------------------------


def test_a_glance_says_where_a_run_stands(tmp_path):
    text = shown(going(tmp_path / "a", 5))
    assert "FetchPush-v4  aim  seed 0" in text
    assert "50%  step 10,000 of 20,000" in text
    assert "50 steps/s, 3 min 20 s so far, 3 min 20 s left" in text  # 10,000 steps are left at 50 a second
    assert re.search("goal held .*, reached .* steps", text)
    assert "finished" not in text
    assert "finished" in shown(make_run(tmp_path / "b"))


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_nothing_is_wider_than_the_terminal(tmp_path, width):
    lines = shown(make_run(tmp_path / "a", env="A" * 60), width).splitlines()
    assert max(map(len, lines)) <= width


def test_a_young_run_and_a_silent_one_are_said(tmp_path):
    folder = going(tmp_path / "a", 0)
    assert "no evaluation yet" in shown(folder)
    for path in folder.iterdir():
        os.utime(path, (time.time() - 4000, time.time() - 4000))
    assert "no news for 1 h 6 min; if it was stopped: aimrl train --resume --out" in shown(folder, 200)


def test_a_run_name_cannot_steer_the_terminal(tmp_path):
    text = shown(make_run(tmp_path / "a", env="\x1b]0;owned\x07\x1b[2J[bold]x[/bold]"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]x[/bold]" in text


def test_the_curve_is_drawn_where_it_belongs():
    cells = watch.dots(np.array([0.0, 1.0]), np.array([0.0, 1.0]), columns=10, rows=5)
    filled = cells > 0
    assert filled[-1, 0]  # from the lower left
    assert filled[0, -1]  # to the upper right
    assert not filled[0, :5].any()
    assert not filled[-1, 5:].any()
    assert filled.any(0).all()  # without holes
    half = watch.dots(np.array([0.0, 0.5]), np.array([1.0, 1.0]), columns=10, rows=5)
    assert (half[0, :5] > 0).all()
    assert not half[:, 6:].any()  # nothing is drawn where nothing was measured yet


def test_without_a_terminal_each_evaluation_is_one_plain_line(tmp_path):
    folder = going(tmp_path / "a", 2)
    stream = io.StringIO()
    threading.Timer(0.3, lambda: [go_on(folder, 10_000), go_on(folder, 20_000)]).start()
    watch.watch(folder, console=Console(file=stream, width=40), poll=0.05)
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"step {s} of 20,000" for s in ("2,000", "4,000", "10,000", "20,000")]
    assert lines[-1].endswith("100 % reached  6 min 40 s")


def test_bad_folders_are_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="there is no run folder"):
        watch.watch(tmp_path / "gone")
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        watch.watch(tmp_path)


# --- a real terminal ---------------------------------------------------------------------------------------------------------------------


class Terminal:
    """A program in a pseudo-terminal of 80 × 24."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.resize(80)
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read_until(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text[-2000:]
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace")
                except OSError as e:  # the program has ended
                    if e.errno != errno.EIO or not re.search(pattern, self.text):
                        raise AssertionError(self.text[-2000:]) from e
        found, self.text = self.text, ""
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_a_terminal_follows_the_run_through_a_resize_to_its_end(tmp_path):
    folder = going(tmp_path / "a", 3)
    with Terminal(str(folder)) as terminal:
        text = terminal.read_until(r"steps/s.*left")
        assert "30%  step 6,000 of 20,000" in text
        assert any(0x2800 < ord(c) < 0x2900 for c in text)  # the curve
        terminal.resize(40)
        go_on(folder, 10_000)
        text = terminal.read_until(r"(?s)50%.*50%")  # what was drawn before may still be on its way
        drawn = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text[text.index("50%") :])]
        assert len(drawn) > 5
        assert max(map(len, drawn)) <= 40
        go_on(folder, 20_000)
        terminal.read_until("finished")
        assert terminal.process.wait(30) == 0


def test_ctrl_c_ends_the_watching_without_a_traceback(tmp_path):
    folder = going(tmp_path / "a", 3)
    with Terminal(str(folder)) as terminal:
        terminal.read_until(r"steps/s")
        terminal.process.send_signal(signal.SIGINT)
        text = terminal.read_until("stopped watching; the run goes on")
        assert "Traceback" not in text
        assert terminal.process.wait(30) == 0


# --- the page ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    with watch.Server(going(tmp_path / "a", 3)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path="/", method="GET", host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_server_listens_on_loopback_and_serves_one_page(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, body = ask(server)
    assert answer.status == 200
    assert b"live: step 6,000 of 20,000" in body
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, method="HEAD")[0].headers["ETag"] == answer.headers["ETag"]
    for path in ("/config.json", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/config.json", "/?x", "/evals.jsonl", "*"):
        answer, body = ask(server, path)
        assert answer.status in (400, 404)
        assert len(body) < 1000
    assert ask(server, method="POST")[0].status == 501


def test_another_sites_name_is_refused(server):
    assert ask(server, host="evil.example")[0].status == 403
    assert ask(server, host=f"evil.example:{server.server_address[1]}")[0].status == 403
    assert ask(server, host=f"localhost:{server.server_address[1]}")[0].status == 200


def test_the_page_is_made_anew_only_when_files_change(server):
    tags = [ask(server, method="HEAD")[0].headers["ETag"] for _ in range(2)]
    assert tags[0] == tags[1]
    go_on(server.folder, 8_000)
    assert ask(server, method="HEAD")[0].headers["ETag"] != tags[0]


def test_a_vanished_run_is_said_and_the_server_stays(server):
    ask(server)
    (server.folder / "config.json").rename(server.folder / "gone.json")
    answer, body = ask(server)
    assert answer.status in (200, 503)
    assert b"config.json does not exist" in body
    (server.folder / "gone.json").rename(server.folder / "config.json")
    assert ask(server)[0].status == 200


def test_a_browser_that_leaves_in_the_middle_of_the_page_is_not_told(server, capfd):
    for error in (BrokenPipeError(), ConnectionResetError()):
        try:
            raise error
        except OSError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""
    try:
        raise RuntimeError("a fault of ours")
    except RuntimeError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert "a fault of ours" in capfd.readouterr().err


def test_a_taken_port_is_one_clear_line(server, tmp_path):
    with pytest.raises(UserError, match="cannot listen on port"):
        watch.Server(tmp_path, server.server_address[1])
    with pytest.raises(UserError, match="cannot listen on port"):
        watch.Server(tmp_path, 70_000)


def test_the_live_page_follows_the_run_in_a_browser_and_keeps_the_readers_choices(server):
    with chromium() as browser, Visit(browser, server.url) as visit:
        points = "document.querySelector('.plot').data.find(t => t.meta === 'line').x.length"
        assert visit.page.evaluate(points) == 3
        visit.page.get_by_label("reached at any time").check()
        visit.page.evaluate("document.getElementById('run-0').open = true")
        visit.wait("document.documentElement.dataset.connected === 'yes'")
        go_on(server.folder, 8_000)
        visit.wait(f"{points} === 4")
        assert "live: step 8,000 of 20,000" in visit.page.locator("header").inner_text()
        assert visit.page.get_by_label("reached at any time").is_checked()
        assert visit.page.evaluate("document.getElementById('run-0').open")
        go_on(server.folder, 20_000)
        visit.wait("document.querySelector('.live').textContent === 'finished'")
        assert visit.said == []
        assert {u for u in visit.asked if not u.startswith("data:")} == {server.url}


def test_the_command_serves_until_ctrl_c(tmp_path):
    with Terminal(str(going(tmp_path / "a")), "web") as terminal:
        text = terminal.read_until(r"live report on http://127\.0\.0\.1:\d+/ \(Ctrl-C ends\)")
        port = int(re.search(r"127\.0\.0\.1:(\d+)", text)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("HEAD", "/")
        assert connection.getresponse().status == 200
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped serving")
        assert terminal.process.wait(30) == 0


def test_a_finished_run_can_be_watched_too(tmp_path):
    folder = make_run(tmp_path / "done")
    write_lines(folder / "metrics.jsonl", [])
    assert "finished" in shown(folder)
    with watch.Server(folder) as made:
        page, _ = made.current()
    assert b">finished</p>" in page
