"""What the page draws: labels that do not cover each other, pauses, cells with the names of their columns."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.tests.support.outside.page_script import PAGE, needs_node, on_page
from shadowsync.watch.status import Quality, ValidationStatus

pytestmark = needs_node
LETTER = 0.62
# As wide as letters are; elements that keep what they were given; a chart that keeps its data.
DOCUMENT = """
class Element {
  constructor(kind) { Object.assign(this, { kind, given: {}, children: [], dataset: {}, textContent: "" }); }
  setAttribute(name, value) { this.given[name] = value; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  getContext() {
    const size = () => Number(this.font.match(/(\\d+)px/)[1]);
    return Object.assign(this, { measureText: (text) => ({ width: text.length * size() * LETTER }) });
  }
}
const made = new Map();
const find = (id) => {
  if (!made.has(id)) made.set(id, Object.assign(new Element(id), { clientWidth: 400 }));
  return made.get(id);
};
find("nodes").tHead = new Element("thead");
find("nodes").tBodies = [new Element("tbody")];
const body = new Element("body");
globalThis.document = {
  documentElement: body, body, getElementById: find,
  createElement: (kind) => new Element(kind), createElementNS: (_, kind) => new Element(kind),
};
globalThis.getComputedStyle = () => ({ fontFamily: "sans", getPropertyValue: () => "" });
globalThis.uPlot = class {
  constructor(options, data, container) { container.plot = { options, data }; }
  static join(tables) {
    const xs = [...new Set(tables.flatMap(([x]) => x))].sort((a, b) => a - b);
    return [xs, ...tables.map(([x, y]) => xs.map((place) => y[x.indexOf(place)]))];
  }
};
""".replace("LETTER", str(LETTER))


def drawn_by(folder: Path, script: str) -> Any:
    """What a script gives, with a document for the page's modules to draw into."""
    return on_page(folder, script, "charts", "figures", "runs", "topology", before=DOCUMENT)


def status(trainers: int, readers: int, embedding: int, sync: int) -> dict[str, Any]:
    """Nodes with long figures, and each trainer's edges, to the next trainer too."""
    counts = {"reader": readers, "trainer": trainers, "embedding": embedding, "sync": sync}
    names = {role: [f"{role}-{10 + at}" for at in range(count)] for role, count in counts.items()}
    nodes: list[dict[str, Any]] = [{"name": "coordinator", "role": "coordinator", "alive": True, "cpu": 0.5}]
    for role, all_of_role in names.items():
        key = "examples_per_second" if role in ("reader", "trainer") else "requests_per_second"
        nodes += [{"name": name, "role": role, "alive": True, key: 123456789.0} for name in all_of_role]
    pairs = [
        *itertools.product(names["reader"], names["trainer"]),
        *itertools.product(names["trainer"], names["embedding"] + names["sync"]),
        *itertools.pairwise(names["trainer"]),
    ]
    edges = [{"source": a, "target": b, "up": 123e6, "down": 456e6} for a, b in pairs]
    return {"nodes": nodes, "edges": edges}


Box = tuple[float, float, float, float]
FONTS = {"name": (13, 11), "what": (12, 11), "rate": (11, 11)}


def elements(folder: Path, given: dict[str, Any], width: int) -> list[dict[str, Any]]:
    """Those of the picture of all nodes, the whole one first."""
    found: list[dict[str, Any]] = drawn_by(
        folder,
        f"""const at = {{ clientWidth: {width}, replaceChildren(svg) {{ this.svg = svg; }} }};
        topology.showTopology(at, {json.dumps(given)});
        const all = (one) => [one, ...one.children.flatMap(all)];
        return all(at.svg).map(({{ kind, given, textContent }}) => ({{ kind, given, textContent }}));""",
    )
    return found


def drawn(folder: Path, given: dict[str, Any], width: int) -> tuple[list[Box], dict[str, list[Box]], Box]:
    """The boxes of nodes, those of texts by kind, and that of the whole picture."""
    found = elements(folder, given, width)
    rectangles: list[Box] = []
    texts: dict[str, list[Box]] = {kind: [] for kind in FONTS}
    for one in found:
        at = one["given"]
        if one["kind"] == "rect":
            rectangles.append((at["x"], at["y"], at["x"] + at["width"], at["y"] + at["height"]))
        elif one["kind"] == "text":
            size = FONTS[at["class"]][width < 560]
            wide = LETTER * size * len(one["textContent"])
            left = at["x"] - wide / 2 if at.get("text-anchor") == "middle" else at["x"]
            texts[at["class"]].append((left, at["y"] - 0.8 * size, left + wide, at["y"] + 0.2 * size))
    _, _, *whole = map(float, found[0]["given"]["viewBox"].split())
    return rectangles, texts, (0.0, 0.0, whole[0], whole[1])


def meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(one: Box, other: Box) -> bool:
    return one[0] >= other[0] and one[1] >= other[1] and one[2] <= other[2] and one[3] <= other[3]


@pytest.mark.parametrize("width", [310, 700, 1200])
@pytest.mark.parametrize(
    ("trainers", "readers", "embedding", "sync"),
    [
        (1, 1, 1, 0),
        (1, 1, 2, 1),
        (2, 1, 2, 1),
        (3, 1, 2, 1),
        (2, 2, 3, 2),
        (4, 2, 2, 2),
        (6, 3, 4, 2),
        (9, 2, 3, 2),
    ],
)
def test_no_label_is_over_another_or_over_a_node(
    tmp_path: Path, trainers: int, readers: int, embedding: int, sync: int, width: int
) -> None:
    given = status(trainers, readers, embedding, sync)
    boxes, texts, picture = drawn(tmp_path, given, width)
    assert texts["rate"], "rates are told"
    for one, other in itertools.combinations(texts["rate"], 2):
        assert not meet(one, other)
    for rate, box in itertools.product(texts["rate"], boxes):
        assert not meet(rate, box)
    for text in [*texts["name"], *texts["what"], *texts["rate"]]:
        assert inside(text, picture)
    for text in [*texts["name"], *texts["what"]]:
        assert any(inside(text, box) for box in boxes)


def test_a_shortened_name_keeps_its_number(tmp_path: Path) -> None:
    found = elements(tmp_path, status(2, 1, 2, 1), 310)
    names = [one["textContent"] for one in found if one["given"].get("class") == "name"]
    assert len(names) == len(set(names)) == 7
    assert sum(name.startswith("e") and name.endswith(("-10", "-11")) for name in names) == 2


STEADY = [[at / 2, 4.0] for at in range(1, 41)]
PAUSED = [*STEADY, *([30 + x, y] for x, y in STEADY), [80.0, 5.0]]


@pytest.mark.parametrize("others", [[], [[at / 3, 2.0] for at in range(1, 300)]], ids=["alone", "beside"])
def test_a_pause_is_a_break_in_the_curve(tmp_path: Path, others: list[list[float]]) -> None:
    given = {"gap/trainer-0": PAUSED} | ({"gap/trainer-1": others} if others else {})
    plot = drawn_by(
        tmp_path,
        f"""new charts.Charts().show(new Map(Object.entries({json.dumps(given)})));
        const {{ options, data }} = find("gap").plot;
        const points = options.series[1].points.filter({{ data }}, 1);
        return {{ xs: data[0], ys: data[1].map((y) => (y === undefined ? "other" : y)), points,
          spans: options.series[1].spanGaps }};""",
    )
    assert plot["spans"] is False
    own = [(x, y) for x, y in zip(plot["xs"], plot["ys"], strict=True) if y != "other"]
    broken = [before for (before, _), (_, y) in itertools.pairwise(own) if y is None]
    assert broken == [20.0, 50.0]
    assert [plot["xs"][at] for at in plot["points"]] == [80.0], "a point alone has no line, but a mark"


def test_steps_that_are_not_even_are_no_pause(tmp_path: Path) -> None:
    uneven = [[float(x), 1.0] for x in (1, 2, 3, 5, 6, 8, 9, 11.5, 12, 13)]
    assert drawn_by(tmp_path, f"return charts.withBreaks({json.dumps(uneven)});") == uneven
    assert drawn_by(tmp_path, "return [[], [[1, 2]]].map(charts.withBreaks);") == [[], [[1, 2]]]


def test_each_cell_of_the_processes_names_its_column(tmp_path: Path) -> None:
    node: dict[str, Any] = {"name": "trainer-0", "host": "a", "pid": 7, "cpu": 0.5, "gap_open": 3}
    node |= {"alive": True, "ready": True}
    cells = drawn_by(
        tmp_path,
        f"""figures.showNodes({{ nodes: [{json.dumps(node)}], loops: null }});
        const [row] = find("nodes").tBodies[0].children;
        return row.children.map((one) => [one.dataset.title, one.textContent]);""",
    )
    named = {title: text for title, text in cells if title}
    assert named == {"node": "trainer-0", "host": "a", "pid": "7", "CPU": "50%", "gap": "3"}
    narrow = (PAGE / "page.css").read_text(encoding="utf-8").split("@media (max-width: 860px)")[-1]
    assert "#nodes tr { display: flex; flex-wrap: wrap" in narrow


def test_the_runs_are_read_when_the_table_is_opened_and_shown_as_text(tmp_path: Path) -> None:
    rows = [{"run": "a-2", "NE": "0.7000"}, {"run": "<b>a</b>", "NE": "0.8000"}]
    found = drawn_by(
        tmp_path,
        f"""const asked = [];
        globalThis.fetch = async (path) => {{
          asked.push(path);
          return {{ ok: true, json: async () => {json.dumps(rows)} }};
        }};
        const table = new Element("table");
        Object.assign(table, {{ tHead: new Element("thead"), tBodies: [new Element("tbody")] }});
        const details = {{ open: false, querySelector: () => table }};
        details.addEventListener = (_, toggled) => {{ details.toggled = toggled; }};
        runs.openRuns(details);
        await details.toggled();
        const before = asked.length;
        details.open = true;
        await details.toggled();
        const texts = (part) => part.children.map((line) => line.children.map((cell) => cell.textContent));
        return {{ before, asked, head: texts(table.tHead), body: texts(table.tBodies[0]) }};""",
    )
    assert found == {
        "before": 0,
        "asked": ["/runs.json"],
        "head": [["run", "NE"]],
        "body": [["a-2", "0.7000"], ["<b>a</b>", "0.8000"]],
    }


@pytest.mark.parametrize(("ne", "metric"), [(None, "recall@10"), (None, "ne"), (0.8, "auc")])
def test_scores_without_ne_have_no_cell_of_it(tmp_path: Path, ne: float | None, metric: str) -> None:
    whole = a_status(
        quality=Quality(ne=ne),
        validation_metric=metric,
        validation=[ValidationStatus(examples=1_000, value=0.125, metrics={metric: 0.125})],
    ).model_dump(mode="json")
    names = drawn_by(
        tmp_path,
        f"""figures.showFigures({json.dumps(whole)});
        return find("figures").children.map((cell) => cell.children[0].textContent);""",
    )
    assert ("NE in training" in names) == (metric != "recall@10")
    assert any(name.endswith(" in validation") for name in names)


def test_rows_on_disk_have_a_figure_that_says_who_waits(tmp_path: Path) -> None:
    whole = a_status().model_dump(mode="json")
    on_disk = {"memory_share": 0.897, "disk_reads_per_second": 44326.0, "disk_wait_share": 0.33}
    in_memory = dict.fromkeys(on_disk)
    shown = []
    for figures in (on_disk, in_memory):
        given = whole | {"embedding": whole["embedding"] | figures}
        texts = drawn_by(
            tmp_path,
            f"""figures.showFigures({json.dumps(given)});
            return find("figures").children.map((cell) => cell.children.map((one) => one.textContent));""",
        )
        shown.append([text for text in texts if text[0] == "Rows found in memory"])
    words = "44,326 rows/s from disk; nodes wait for it 33% of the time"
    assert shown == [[["Rows found in memory", "89.7%", words]], []]
