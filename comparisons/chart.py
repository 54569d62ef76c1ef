"""A bar chart as SVG, without a library: the rates of `compare.py`, one group of bars per subject. Pure.

Each group has its own scale, because words and samples are different things. The text has a white background, so
that the chart can be read on a dark page.
"""

from __future__ import annotations

from html import escape
from statistics import median

from cases import OURS, SUBJECTS
from tables import title_of, values

WIDTH, LEFT, RIGHT, BAR, GAP, HEADING, MARGIN = 860, 330, 110, 18, 5, 34, 14
COLOURS = {True: "#1f6feb", False: "#9aa4af"}


def svg(result: dict) -> str:
    """The chart. Cases without a successful run and the times of start-up are left out."""
    y, shapes = MARGIN, []
    for subject, heading in SUBJECTS.items():
        bars = [
            (
                f"{title_of(case['peer'])}, {case['name'].replace('`', '')}",
                median(values(case, "rate")),
                case["peer"] == OURS,
            )
            for case in result["cases"]
            if case["subject"] == subject and values(case, "rate")
        ]
        if not bars:
            continue
        unit = "words/s" if subject == "word2vec" else "samples/s"
        y += HEADING
        shapes.append(f'<text class="heading" x="{MARGIN}" y="{y - 12}">{escape(heading)}, {unit}</text>')
        most = max(rate for _, rate, _ in bars)
        for label, rate, ours in bars:
            length = max(1.0, (WIDTH - LEFT - RIGHT) * rate / most)
            shapes.append(f'<text class="label" x="{LEFT - 8}" y="{y + BAR - 5}">{escape(label)}</text>')
            shapes.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[ours]}"/>')
            shapes.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + BAR - 5}">{rate:,.0f}</text>')
            y += BAR + GAP
    if not shapes:
        y += HEADING
        shapes.append(
            f'<text x="{MARGIN}" y="{y - 12}">No comparison is recorded here: `make compare` writes it.</text>'
        )
    height = y + MARGIN
    size = f'width="{WIDTH}" height="{height}"'
    title = "Training speed of OpenFleet and other systems"
    style = "text{font:12px sans-serif;fill:#1f2328}.heading{font-weight:bold;font-size:14px}.label{text-anchor:end}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height}" {size}>',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *shapes,
            "</svg>\n",
        ]
    )
