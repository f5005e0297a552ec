"""The page in a real headless browser: it loads without a connection or an error, answers clicks, and stays quick."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_cases import EVIL, evil_report, report_of

from taskflow.mapper import MessageSync, SyncAlgorithm, UpdatePlacement
from taskflow.report import write_page
from taskflow.report.units import seconds

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright: pip install 'soap-taskflow[browser]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH: install it with the system's package manager"),
]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
COLOURS = """(name) => {
    const c = document.querySelector(name), seen = new Set();
    const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(c, 0, 0);
    const d = copy.getImageData(0, 0, c.width, c.height).data;
    for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
    return seen.size;
}"""
WAIT = """() => new Promise((done) => {
    const look = () => (window.taskflow && taskflow.marks.everything ? done() : setTimeout(look, 2));
    look();
})"""  # wait_for_function would evaluate in the page, which its content policy forbids
DRAW = """() => {
    taskflow.timeline.draw();
    return Number(document.getElementById("timeline-canvas").dataset.drawMilliseconds);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Opened:
    """A page that is ready, with all that it complained about or asked the network for."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.devtools = self.page.context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(path.as_uri())
        self.page.evaluate(WAIT)

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def until(self, done: Callable[[], bool]) -> bool:
        """Whether it comes to that, also on a busy machine: what was asked of the page is drawn with one of its next frames."""
        late = time.monotonic() + 60
        while not (found := done()) and time.monotonic() < late:
            self.page.wait_for_timeout(20)
        return found

    def processor_milliseconds(self) -> float:
        """What the page's main thread has used of a core so far."""
        found = {each["name"]: each["value"] for each in self.devtools.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(found["TaskDuration"])

    def check(self) -> None:
        assert self.said == []
        assert len(self.asked) == 1 and self.asked[0].startswith("file:")

    def colours(self, canvas: str) -> int:
        """How many colours a canvas shows: an empty one shows one."""
        return self.page.evaluate(COLOURS, canvas)


@pytest.fixture(scope="module")
def recurrent(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(report_of("RNNTC", "expert", 4)[1], path)
    opened = Opened(browser, path)
    yield opened
    opened.check()  # after everything that the tests did
    opened.page.close()


def test_everything_is_drawn(recurrent: Opened) -> None:
    _, report = report_of("RNNTC", "expert", 4)
    for canvas in ("#graph-canvas", "#timeline-canvas", "#overview", "#memory-canvas"):
        assert recurrent.colours(canvas) > 8, canvas
    assert recurrent.page.locator("#bars .stack").count() == 2 * (1 + len(report.value["baselines"]))
    assert recurrent.page.locator("#nodes .meter").count() > 4
    assert "does not say how it was found" in recurrent.page.inner_text("#search-note")
    assert recurrent.page.is_hidden("#trouble")
    recurrent.check()


def test_clicking_an_operator_shows_its_configuration(recurrent: Opened) -> None:
    evaluator, report = report_of("RNNTC", "expert", 4)
    number = next(n.number for n in evaluator.graph if n.operator.kind == "lstm")
    operator = report.value["operators"][number]
    recurrent.page.locator("#graph-canvas").scroll_into_view_if_needed()
    place = recurrent.run(f"taskflow.graph.place({number})")
    recurrent.page.mouse.click(place["x"], place["y"])
    panel = recurrent.page.inner_text("#details")
    assert recurrent.page.inner_text("#configuration") == f"lstm: {operator['configuration']}"
    assert operator["name"] in panel and seconds(operator["piece_seconds"][0]) in panel and operator["sync"] in panel
    for name, size, _, degree in operator["dims"]:
        assert f"{name}\t{size}" in panel and f"\t{degree}" in panel
    assert recurrent.colours("#piece-canvas") >= 2
    assert recurrent.page.inner_text("#filter").startswith(f"only {operator['name']}")  # the timeline follows
    assert recurrent.page.locator("tr.on").get_attribute("data-operator") == str(number)
    recurrent.page.mouse.click(place["x"], place["y"])  # again: nothing is chosen
    assert recurrent.page.is_hidden("#filter") and "Choose an operator" in recurrent.page.inner_text("#details")


def test_the_table_and_the_search_box_choose_too(recurrent: Opened) -> None:
    recurrent.page.locator("tr[data-operator] th").filter(has_text="softmax").first.click()
    assert "softmax" in recurrent.page.inner_text("#details h3")
    recurrent.page.fill("#find", "lstm0")
    assert recurrent.page.inner_text("#details h3") == "lstm0"
    recurrent.page.fill("#find", "")
    recurrent.page.get_by_role("button", name="Clear").click()
    assert "Choose an operator" in recurrent.page.inner_text("#details")


def test_the_timeline_zooms_and_tells(recurrent: Opened) -> None:
    _, report = report_of("RNNTC", "expert", 4)
    page, rows = recurrent.page, report.columns
    page.locator("#timeline-canvas").scroll_into_view_if_needed()
    page.click("#time-fit")
    whole = recurrent.run("taskflow.timeline.view()")
    page.click("#time-in")
    near = recurrent.run("taskflow.timeline.view()")
    assert near["to"] - near["from"] == pytest.approx((whole["to"] - whole["from"]) / 2)
    box = page.locator("#timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")

    def width() -> float:
        view = recurrent.run("taskflow.timeline.view()")
        return float(view["to"] - view["from"])

    assert recurrent.until(lambda: width() < 0.6 * (near["to"] - near["from"]))
    page.click("#time-fit")
    row = int((rows["end"] - rows["start"] - 10**12 * (rows["category"] > 0)).argmax())  # the longest forward task
    operator = report.value["operators"][int(rows["operator"][row]) - 1]

    def tells() -> bool:
        place = recurrent.run(f"taskflow.timeline.middleOf({row})")
        page.mouse.move(place["x"], place["y"])
        return f"{operator['name']}: forward" in page.inner_text("#tooltip")

    assert recurrent.until(tells)
    told, place = page.inner_text("#tooltip"), recurrent.run(f"taskflow.timeline.middleOf({row})")
    assert f"device {rows['processor'][row]}" in told
    assert f"takes {seconds(float(rows['end'][row] - rows['start'][row]) * report.value['tick_seconds'])}" in told
    page.mouse.click(place["x"], place["y"])
    assert page.inner_text("#details h3") == operator["name"]
    page.evaluate("document.getElementById('path-details').open = true")
    stretches = min(300, len(report.value["critical_path"]["stretches"]))
    assert recurrent.until(lambda: page.locator("#path tr").count() == stretches)
    page.select_option("#lanes", "both")
    page.select_option("#colour-by", "operator")
    page.check("#critical")
    assert recurrent.until(lambda: recurrent.colours("#timeline-canvas") > 8)
    page.uncheck("#critical")
    page.get_by_role("button", name="Clear").click()


def test_light_and_dark(recurrent: Opened) -> None:
    def paper() -> str:
        return recurrent.run("getComputedStyle(document.body).backgroundColor")

    light = paper()
    recurrent.page.click("#theme")
    dark = paper()
    recurrent.page.click("#theme")
    assert light != dark and paper() == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_need_no_sideways_scrolling(browser: Any, tmp_path: Path, scheme: str) -> None:
    write_page(report_of("LeNet", "data", 2)[1], tmp_path / "r.html")
    opened = Opened(browser, tmp_path / "r.html", 380, scheme)
    assert opened.run("document.documentElement.scrollWidth") <= 380
    opened.check()


def test_blocks_fold(browser: Any, tmp_path: Path) -> None:
    evaluator, report = report_of("Inception-v3", "data", 2)
    write_page(report, tmp_path / "r.html")
    opened = Opened(browser, tmp_path / "r.html")
    number = evaluator.graph.node("Mixed_5b.branch1x1.conv").number
    opened.page.locator("#graph-canvas").scroll_into_view_if_needed()
    folded = opened.run(f"taskflow.graph.place({number})")
    opened.page.mouse.move(folded["x"], folded["y"])
    assert "double click to open" in opened.page.inner_text("#tooltip")
    opened.page.mouse.dblclick(folded["x"], folded["y"])
    opened.page.mouse.move(1, 1)

    def unfolded() -> bool:
        place = opened.run(f"taskflow.graph.place({number})")
        opened.page.mouse.click(place["x"], place["y"])
        return bool(opened.page.inner_text("#details h3") == "Mixed_5b.branch1x1.conv")

    assert opened.until(unfolded)
    opened.page.click("#unfold")
    opened.page.click("#fold")
    opened.check()


def test_stages_are_lanes_and_micro_batches_colours(browser: Any, tmp_path: Path) -> None:
    _, report = report_of("GPT-2", "p2 d2 mb1", 4)
    write_page(report, tmp_path / "r.html")
    opened = Opened(browser, tmp_path / "r.html")
    micros = report.value["pipeline"]["micro_batches"]
    assert opened.page.locator("#pipeline svg").is_visible()
    assert opened.page.input_value("#colour-by") == "micro"
    assert opened.page.locator("#category-legend span").count() == micros
    row = next(i for i, (c, m) in enumerate(zip(report.columns["category"], report.columns["micro"])) if c == 0 and m == 2)
    opened.page.locator("#timeline-canvas").scroll_into_view_if_needed()
    place = opened.run(f"taskflow.timeline.middleOf({row})")
    opened.page.mouse.move(place["x"], place["y"])
    assert "micro-batch 1" in opened.page.inner_text("#tooltip")
    opened.page.select_option("#colour-by", "category")
    opened.check()
    write_page(report_of("GPT-2", "data", 4)[1], tmp_path / "d.html")
    plain = Opened(browser, tmp_path / "d.html")
    assert plain.page.locator("#pipeline").count() == 0 and plain.page.locator("#colour-by option").count() == 2
    plain.check()


def test_names_do_not_run(browser: Any, tmp_path: Path) -> None:
    write_page(evil_report(), tmp_path / "r.html")
    opened = Opened(browser, tmp_path / "r.html")
    opened.run("document.querySelectorAll('tr[data-operator]').forEach((row) => row.click())")
    opened.page.fill("#find", f"b{EVIL}")
    assert opened.page.inner_text("#details h3") == f"b{EVIL}"
    assert EVIL in opened.page.inner_text("#search-note")
    assert opened.run("window.hurt") is None and opened.page.locator("img").count() == 0
    opened.check()


def test_a_step_of_64_devices_is_ready_and_drawn_quickly(browser: Any, tmp_path: Path) -> None:
    """The paper's NMT on 64 K80, the expert's plan, rings of messages: thousands of tasks. The issue's limit is 2 s."""
    _, report = report_of("NMT", "expert", 64, preset="paper", sync=MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED))
    assert report.value["plan"]["tasks"] > 8000
    size = write_page(report, tmp_path / "r.html")
    assert size < 5_000_000
    opened = Opened(browser, tmp_path / "r.html")
    ready = [opened.run("taskflow.ready")]
    while len(ready) < 8 and min(ready) >= 2000:  # others may use the machine
        opened.page.close()
        opened = Opened(browser, tmp_path / "r.html")
        ready.append(opened.run("taskflow.ready"))
    assert min(ready) < 2000, ready
    opened.page.select_option("#lanes", "both")
    opened.page.select_option("#lane-height", "0")  # every lane at once
    draws = [opened.run(DRAW)]
    while len(draws) < 50 and min(draws) >= 50:
        draws.append(opened.run(DRAW))
    assert min(draws) < 50, draws  # of a frame in software, between what else the machine does
    opened.check()


def test_joined_tasks_are_told(browser: Any, tmp_path: Path) -> None:
    _, report = report_of("NMT", "random", 4, most_rows=400)
    write_page(report, tmp_path / "r.html")
    opened = Opened(browser, tmp_path / "r.html")
    note = opened.page.inner_text("#timeline-note")
    assert f"{report.value['plan']['tasks']:,} tasks" in note and "are joined into" in note
    rows = report.columns
    order = ((rows["count"] > 1) & (rows["category"] < 5)) * (rows["end"] - rows["start"])
    row = int(order.argmax())
    opened.page.locator("#timeline-canvas").scroll_into_view_if_needed()
    place = opened.run(f"taskflow.timeline.middleOf({row})")
    opened.page.mouse.move(place["x"], place["y"])
    assert "tasks joined for drawing" in opened.page.inner_text("#tooltip")
    opened.check()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT"])
def test_the_papers_networks_on_64_devices(browser: Any, tmp_path: Path, model: str) -> None:
    """The issue's limits: pages under 5 MB that can be used within 2 s. What the page costs the processor, all that follows
    further down included, is below 1 s, whoever else uses the machine."""
    size = write_page(report_of.__wrapped__(model, "data", 64, preset="paper")[1], tmp_path / "r.html")
    assert size < 5_000_000
    ready, busy = [], []
    while len(ready) < 8 and (not ready or min(ready) >= 2000 or min(busy) >= 1000):  # others may use the machine
        opened = Opened(browser, tmp_path / "r.html")
        ready.append(opened.run("taskflow.ready"))
        busy.append(opened.processor_milliseconds())
        opened.check()
        opened.page.close()
    assert min(ready) < 2000, ready
    assert min(busy) < 1000, busy
