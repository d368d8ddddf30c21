# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Charts of a report's figures, as SVG that is part of the page: no program, no font and no address in it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pygal
from pygal.style import Style

Figure = Mapping[str, Any]

# Colours are those of the page, which has them for light and dark.
_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--text)",
    foreground_strong="var(--text)",
    foreground_subtle="var(--line)",
    guide_stroke_color="var(--line)",
    major_guide_stroke_color="var(--line)",
    stroke_opacity="1",
    colors=tuple(f"var(--series-{number})" for number in range(1, 5)),
    font_family="inherit",
    label_font_size=13,
    major_label_font_size=13,
    legend_font_size=13,
    title_font_size=13,
    opacity="1",
    transition="none",
)
# What tells several lines apart for those who see no colours.
_DASHES = ("", "6, 4", "2, 4", "10, 3, 2, 3")


@dataclass(frozen=True)
class Chart:
    """One chart: its heading, what it shows in words, and the SVG element."""

    title: str
    words: str
    svg: str


def charts(figures: Sequence[Figure]) -> list[Chart]:
    """The charts that the figures are enough for; none where there are no figures."""
    made = [
        _by_length(figures, "decode", "Decode by prompt length"),
        _by_length(figures, "ttft", "Time to the first token by prompt length"),
        _by_position(figures),
    ]
    return [chart for chart in made if chart is not None]


def streams_text(streams: int) -> str:
    """`1 stream`, `8 streams`."""
    return "1 stream" if streams == 1 else f"{streams} streams"


def _by_length(figures: Sequence[Figure], name: str, title: str) -> Chart | None:
    shown = [figure for figure in figures if figure["name"] == name and "prompt_tokens" in figure]
    chart = pygal.Line(**_settings(shown, "prompt tokens (steps, not to scale)"))
    return _drawn(chart, name, title, shown, lambda figure: int(figure["prompt_tokens"]), _streams_of)


def _by_position(figures: Sequence[Figure]) -> Chart | None:
    shown = [figure for figure in figures if figure["name"] == "acceptance" and "position" in figure]
    chart = pygal.Bar(**_settings(shown, "position in the draft"))
    return _drawn(
        chart, "acceptance", "Acceptance by position", shown, lambda figure: int(figure["position"]), _load_of
    )


def _settings(shown: Sequence[Figure], across: str) -> dict[str, Any]:
    return {
        "style": _STYLE,
        # No program of the library in the page, and none from its address.
        "js": (),
        "explicit_size": False,
        "width": 400,
        "height": 280,
        "margin": 8,
        # Half of the last label is to the right of its point.
        "margin_right": 24,
        "x_title": across,
        "y_title": shown[0]["unit"] if shown else "",
        # Lengths differ less where the axis begins at 0; nothing looks larger than it is.
        "include_x_axis": True,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 2,
        "dots_size": 3,
        "truncate_legend": -1,
    }


def _streams_of(figure: Figure) -> str:
    return streams_text(figure["streams"])


def _load_of(figure: Figure) -> str:
    prompt = f", prompt of {figure['prompt_tokens']:,} tokens" if "prompt_tokens" in figure else ""
    return _streams_of(figure) + prompt


def _drawn(
    chart: Any,
    name: str,
    title: str,
    shown: Sequence[Figure],
    place: Callable[[Figure], int],
    line: Callable[[Figure], str],
) -> Chart | None:
    """A chart with one line, or one row of bars, for all figures that `line` has the same words for."""
    if not shown:
        return None
    places = sorted({place(figure) for figure in shown})
    rows: dict[str, dict[int, Figure]] = {}
    for figure in sorted(shown, key=lambda each: (each["streams"], each.get("prompt_tokens", 0))):
        rows.setdefault(line(figure), {})[place(figure)] = figure
    chart.x_labels = [f"{each:,}" for each in places]
    chart.show_legend = len(rows) > 1
    told = []
    for number, (words, row) in enumerate(rows.items()):
        points = [_point(row.get(each)) for each in places]
        dashes = _DASHES[number % len(_DASHES)]
        chart.add(words, points, stroke_style={"dasharray": dashes, "width": 2} if dashes else {"width": 2})
        values = ", ".join(f"{each:,}: {row[each]['value']:,}" for each in places if each in row)
        told.append(f"{words}: {values}")
    words = f"{title}, in {shown[0]['unit']}. {'; '.join(told)}."
    chart.uuid = name
    return Chart(title, words, _svg(chart.render_tree(), f"{name}-title", title, words))


def _point(figure: Figure | None) -> dict[str, Any] | None:
    """The median, with all passes as its whiskers."""
    if figure is None:
        return None
    return {"value": figure["value"], "ci": {"low": min(figure["values"]), "high": max(figure["values"])}}


def _svg(root: Any, title_id: str, title: str, words: str) -> str:
    """The element for a page: an image with a name, without programs, remarks and what only programs read."""
    for parent in list(root.iter()):
        for child in list(parent):
            if not isinstance(child.tag, str) or child.tag.rpartition("}")[2] in ("script", "desc", "title"):
                parent.remove(child)
    root.set("role", "img")
    root.set("aria-label", words)
    root.set("class", "chart")
    return ElementTree.tostring(root, encoding="unicode")
