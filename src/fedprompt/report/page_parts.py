"""The sections of the page, each as HTML; an empty text means that there is nothing to show."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Mapping, Sequence

from PIL import Image

from fedprompt.report import charts, provenance
from fedprompt.report.gallery import Gallery, Shown, data_address
from fedprompt.report.result_table import ResultTable, Row
from fedprompt.report.svg import SERIES
from fedprompt.report.words import in_words
from fedprompt.runs import Run

CURVE = 3  # evaluated rounds; two figures are no curve
MANY_RUNS = 12  # rows of the settings table before it asks to be opened


def summary(found: Sequence[ResultTable]) -> str:
    """The results in words, table by table."""
    out = ""
    for table in found:
        sentences = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in in_words(table))
        out += f'<h3>{html.escape(table.title)}</h3>\n<ul class="words">{sentences}</ul>\n' if sentences else ""
    return out or "<p>There is nothing to compare yet.</p>\n"


def tables(found: Sequence[ResultTable]) -> str:
    """The tables, with a switch for the paper's figures where there are any."""
    if not found:
        return ""
    compared = any(cell is not None and cell.paper is not None for t in found for row in t.rows for cell in row.cells)
    switch = (
        '<label class="switch"><input type="checkbox" id="papers" checked> show the paper\'s figures, and ours minus '
        "the paper's</label>\n"
    )
    return (switch if compared else "") + _boxes(found)


def colours(found: Sequence[ResultTable]) -> dict[str, int]:
    """A number for the name of each row, which is its colour in every chart; the main method has the deepest."""
    labels = dict.fromkeys(row.label for table in found for row in table.rows)
    others = [label for label in labels if label != "pFedBayesPT"]
    numbers = {label: place if place < SERIES - 1 else place + 1 for place, label in enumerate(others)}
    return numbers | {"pFedBayesPT": SERIES - 1}


def curves(found: Sequence[ResultTable], numbers: Mapping[str, int]) -> str:
    """Average and Worst Local over the rounds."""
    out = []
    for table, setting, rows in _panels(found):
        drawn, lines = [], []
        for key, title in (("average", "Average"), ("worst_local", "Worst Local")):
            lines = [line for row in rows if (line := _curve(row, setting, key, numbers)) is not None]
            if lines:
                drawn.append(f"<figure>{charts.lines_chart(lines, title, 'round', 'accuracy (%)')}</figure>")
        if drawn:
            who = " (the clients that train)" if rows[0].entries[0].new_clients else ""
            out.append(f"<h3>{html.escape(f'{table.title}, {setting}')}{who}</h3>\n")
            out.append(f'<ul class="legend">{charts.legend(lines)}</ul><div class="charts">{"".join(drawn)}</div>\n')
    return "<p>Lines are means over seeds, shades the range they span.</p>\n" + "".join(out) if out else ""


def clients(found: Sequence[ResultTable]) -> str:
    """A heat map of methods and clients for each setting."""
    out = []
    for table, setting, rows in _panels(found):
        accuracy = {row.label: values for row in rows if (values := _by_client(row, setting))}
        if accuracy:
            title = f"{table.title}, {setting}"
            picture = charts.heat_map(accuracy, f"Accuracy of each client, {title}")
            out.append(f"<h3>{html.escape(title)}</h3>\n" + _box(picture, title, "heat"))
    told = "Accuracy in % on a client's own images, mean over seeds and the last evaluated rounds; darker is better, "
    return f"<p>{told}and each method's worst client is framed.</p>\n" + "".join(out) if out else ""


def draws(found: Sequence[ResultTable]) -> str:
    """Figures against the number of draws V, where it was measured: charts for each row, and the tables."""
    out = ""
    for place, label in enumerate(row.label for row in found[0].rows) if found else ():
        drawn = ""
        for table in found:
            metric, cells = table.columns[0].metric, table.rows[place].cells
            by_seed: dict[int, dict[int, float]] = {}
            for column, cell in zip(table.columns, cells, strict=True):
                for seed, value in cell.by_seed.items() if cell is not None else ():
                    by_seed.setdefault(seed, {})[int(column.setting.removeprefix("V="))] = value
            line = charts.over_seeds(label, SERIES - 1, list(by_seed.values()), strong=True)
            if line is not None:
                percent = metric.scale != 1
                chart = charts.lines_chart([line], metric.title, "draws V", "%" if percent else "", bounded=percent)
                drawn += f"<figure>{chart}</figure>"
        out += f'<h3>{html.escape(label)}</h3>\n<div class="charts">{drawn}</div>\n' if drawn else ""
    return out + _boxes(found) if found else ""


def calibration(found: Sequence[ResultTable], shown: Gallery | str) -> str:
    """Likelihood and calibration error, and the reliability of one client's model."""
    out = "<p>How far a stated probability can be believed, over the images of all clients together.</p>\n"
    out += _boxes([table for table in found if table.rows])
    if isinstance(shown, Gallery):
        chart = charts.reliability(shown.reliability, f"Client {shown.client}, {shown.images} images")
        told = (
            f"{html.escape(shown.title)}. On the dashed line confidence and accuracy agree; large discs: many images."
        )
        out += f'<div class="charts"><figure class="single">{chart}<figcaption>{told}</figcaption></figure></div>\n'
    return out if any(table.rows for table in found) else ""


def gallery(shown: Gallery | str) -> str:
    """The surest and the least sure of one client's images, or why there are none."""
    if isinstance(shown, str):
        return f'<p class="absent">{html.escape(shown)}</p>\n' if shown else ""
    draws = f"a dot each of the {shown.draws} draws of the prompt" if shown.draws > 1 else "this method draws no prompt"
    told = f"{shown.title}, client {shown.client}: its own model on {shown.images} of its own images. "
    out = f"<p>{html.escape(told)}Bars are class probabilities, {draws}; ✓ is the right class.</p>\n"
    for title, images in (("Most certain", shown.surest), ("Least certain", shown.least_sure)):
        out += f'<h3>{title}</h3>\n<div class="gallery">{"".join(map(_card, images))}</div>\n'
    return out


def partitions(found: Sequence[ResultTable]) -> str:
    """The pictures of who got what, as the runs drew them: of one run for each data set and setting."""
    out, seen = [], set()
    for table, setting, rows in _panels(found):
        entries = [entry for row in rows for entry in row.entries if entry.column == setting]
        entry = next((entry for entry in entries if (entry.run.folder / "partition.png").is_file()), None)
        if entry is None or (entry.data, setting) in seen:
            continue
        seen.add((entry.data, setting))
        told = f"{entry.data_title}, {setting}, seed {entry.seed}"
        address = data_address(_smaller((entry.run.folder / "partition.png").read_bytes()))
        alt = html.escape(f"Training images of each client by class and domain, {told}")
        out.append(f"<h3>{html.escape(told)}</h3>\n")
        out.append(_box(f'<img src="{address}" alt="{alt}">', f"Partition of {table.title}, {setting}", "picture"))
    return "".join(out)


def settings(runs: Sequence[Run]) -> str:
    """Resolved settings, those that differ first, then versions and times."""
    differing, common = provenance.settings(runs)
    names = [run.folder.name for run in runs]
    out = ""
    if differing:
        rows = [[name, *(values[place] for values in differing.values())] for place, name in enumerate(names)]
        across = _plain(["run", *differing], rows)
        out += _folded(f"Settings that differ between the {len(runs)} runs", across, len(runs) <= MANY_RUNS)
    out += _folded("Settings that do not differ", _plain(["setting", "value"], [list(i) for i in common.items()]))
    about = [provenance.code(run) for run in runs]
    keys = list(dict.fromkeys(key for one in about for key in one))
    rows = [[name, *(one.get(key, "") for key in keys)] for name, one in zip(names, about, strict=True)]
    return out + _folded("Versions and times", _plain(["run", *keys], rows))


def commands(runs: Sequence[Run], remake: str) -> str:
    """What to type to get the same runs and the same page."""
    lines = "\n".join(html.escape(provenance.command(run)) for run in runs)
    out = "<p>The same settings and seed give the same figures, bit for bit, on the same machine.</p>\n"
    return out + _box(f"<pre>{lines}\n{html.escape(remake)}</pre>", "Commands")


def _panels(found: Sequence[ResultTable]) -> Iterator[tuple[ResultTable, str, list[Row]]]:
    """Every table and setting, with the rows that have runs there."""
    for table in found:
        for setting in table.settings:
            rows = [row for row in table.rows if any(entry.column == setting for entry in row.entries)]
            if rows:
                yield table, setting, rows


def _curve(row: Row, setting: str, key: str, numbers: Mapping[str, int]) -> charts.Line | None:
    histories = [
        {record["round"]: 100 * record[key] for record in entry.records if key in record}
        for entry in row.entries
        if entry.column == setting
    ]
    line = charts.over_seeds(row.label, numbers[row.label], histories, strong=row.label == "pFedBayesPT")
    return line if line is not None and len(line.x) >= CURVE else None


def _by_client(row: Row, setting: str) -> dict[int, float]:
    """Accuracy of each client in %, over seeds and the last evaluated rounds; of new clients where some joined."""
    found: dict[int, list[float]] = {}
    for entry in row.entries:
        if entry.column != setting:
            continue
        rounds = [record["accuracy"] for record in entry.records if "accuracy" in record]
        last = [entry.figures.get("accuracy", {})] if entry.new_clients else rounds[-entry.run.config.evaluation.last :]
        for accuracy in last:
            for client, value in accuracy.items():
                found.setdefault(int(client), []).append(100 * value)
    return {client: sum(values) / len(values) for client, values in found.items()}


def _card(shown: Shown) -> str:
    verdict = "right" if shown.truth == shown.predicted else "wrong"
    where = f" ({html.escape(shown.domain)})" if shown.domain else ""
    truth, predicted = html.escape(shown.truth), html.escape(shown.predicted)
    return (
        f'<figure class="card"><img src="{data_address(shown.png)}" alt="Test image of class {truth}">'
        f'<figcaption>is {truth}{where}<br>taken for {predicted}, <span class="{verdict}">{verdict}</span></figcaption>'
        f"{charts.probability_bars(shown.classes)}</figure>\n"
    )


def _boxes(found: Sequence[ResultTable]) -> str:
    return f'<div class="tables">{"".join(_box(table.to_html(), table.title) for table in found)}</div>\n'


def _box(content: str, label: str, kind: str = "") -> str:
    """Wide content scrolls inside its box, by keyboard too."""
    classes = f"box {kind}".strip()
    return f'<div class="{classes}" role="region" tabindex="0" aria-label="{html.escape(label)}">{content}</div>\n'


def _folded(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{html.escape(title)}</summary>\n{_box(content, title)}</details>\n"


def _plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = ""
    for first, *rest in rows:
        values = "".join(f"<td>{html.escape(value)}</td>" for value in rest)
        body += f'<tr><th scope="row">{html.escape(first)}</th>{values}</tr>\n'
    return f'<table class="plain"><thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table>'


def _smaller(png: bytes) -> bytes:
    """A drawing with few colours, in a third of the bytes."""
    with Image.open(io.BytesIO(png)) as picture:
        reduced = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    out = io.BytesIO()
    reduced.save(out, "png", optimize=True)
    return out.getvalue()
