"""Draws a topology in layers: hosts at the bottom, then their switches, then those above."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx

_INCHES_PER_HOST = 0.3
_LAYER_INCHES = 1.5
_HOST_NAME_INCHES = 0.75
_LEGEND_LINE_INCHES = 0.27
_LEAST_WIDTH_INCHES = 6.0
# Okabe and Ito's colours, which people with any colour vision tell apart.
_NODE_COLOURS = {
    "switch": "#0072B2",
    "server": "#D55E00",
    "worker": "#009E73",
    "traffic": "#999999",
}
_LINK_COLOURS = ("#555555", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#D55E00")


def draw(
    topology: Any, kinds: Mapping[str, Sequence[str]], title: str, path: Path
) -> tuple[Path, Path]:
    """Write `path` as .svg and .png.

    Args:
        topology: a `LabTopo`.
        kinds: properties of links in words -> the names of the links.
        title: over the picture.

    Raises:
        OSError: a file cannot be written.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own matplotlibrc changes no picture
        return _draw(topology, kinds, title, path)


def _draw(
    topology: Any, kinds: Mapping[str, Sequence[str]], title: str, path: Path
) -> tuple[Path, Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = layout(topology)
    layers = 1 + max(round(y) for _, y in places.values())
    width = max(_LEAST_WIDTH_INCHES, _INCHES_PER_HOST * (2 + len(topology.hosts())))
    legend_inches = _LEGEND_LINE_INCHES * (len(kinds) + 1)
    height = _LAYER_INCHES * (layers - 1) + _HOST_NAME_INCHES + legend_inches + 0.9
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    bottom = (legend_inches + _HOST_NAME_INCHES) / height
    axes = figure.add_axes((0.01, bottom, 0.98, 1 - bottom - 0.6 / height))
    axes.set_title(title, fontsize=11, loc="left")
    axes.axis("off")
    axes.set_xlim(-1, max(x for x, _ in places.values()) + 1)
    axes.set_ylim(-0.15, layers - 1 + 0.3)
    _draw_links(axes, kinds, places)
    _draw_nodes(axes, topology, places, width)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="lower left", fontsize=8, frameon=False, ncols=1
    )
    written = path.with_suffix(".svg"), path.with_suffix(".png")
    for each in written:
        figure.savefig(each, dpi=120)
    return written


def layout(topology: Any) -> dict[str, tuple[float, float]]:
    """Where each node is: x in hosts from the left, y in layers from the bottom."""
    graph, hosts = topology.as_graph(), set(topology.hosts())
    height = networkx.multi_source_dijkstra_path_length(graph, hosts, weight=None)
    ordered = topology.sorted(node for node in graph if height[node] == 1)
    places: dict[str, tuple[float, float]] = {}
    x = 0.0
    for switch in ordered:
        under = topology.sorted(node for node in graph[switch] if node in hosts)
        for position, host in enumerate(under):
            places[host] = (x + position, 0)
        places[switch] = (x + (len(under) - 1) / 2, 1)
        x += len(under) + 0.7
    width = max(place[0] for place in places.values())
    for level in range(2, 1 + max(height.values())):
        names = topology.sorted(node for node in graph if height[node] == level)
        # Above what they are linked to; where many share that, side by side over the width.
        below = {
            name: [places[near][0] for near in graph[name] if near in places] for name in names
        }
        centres = {name: sum(below[name]) / len(below[name]) for name in names}
        names.sort(key=lambda name: centres[name])
        for position, name in enumerate(names):
            places[name] = ((position + 0.5) * (width + 1) / len(names) - 0.5, level)
    return places


def _draw_links(
    axes: Any, kinds: Mapping[str, Sequence[str]], places: Mapping[str, tuple[float, float]]
) -> None:
    from matplotlib.patches import FancyArrowPatch

    for number, (words, names) in enumerate(kinds.items()):
        colour = _LINK_COLOURS[number % len(_LINK_COLOURS)]
        for name in names:
            first, _, second = name.partition("--")
            if 0 in (places[first][1], places[second][1]):
                (x, y), (host_x, _) = sorted((places[first], places[second]), key=lambda at: -at[1])
                # The last piece is vertical: no link runs through another host.
                axes.plot([x, host_x, host_x], [y, 0.3, 0], color=colour, linewidth=1.0, zorder=1)
                continue
            level = places[first][1] == places[second][1]
            between = level and any(
                y == places[first][1]
                and min(places[first][0], places[second][0]) < x
                and x < max(places[first][0], places[second][0])
                for x, y in places.values()
            )
            axes.add_patch(
                FancyArrowPatch(
                    places[first],
                    places[second],
                    arrowstyle="-",
                    connectionstyle=f"arc3,rad={0.25 if between else 0}",
                    shrinkA=0,
                    shrinkB=0,
                    color=colour,
                    linewidth=1.6,
                    zorder=1,
                )
            )
        noun = "link" if len(names) == 1 else "links"
        axes.plot([], [], color=colour, label=f"{len(names)} {noun}: {words}")


def _draw_nodes(
    axes: Any, topology: Any, places: Mapping[str, tuple[float, float]], width_inches: float
) -> None:
    hosts = set(topology.hosts())
    inches_per_unit = width_inches / (2 + max(x for x, _ in places.values()))
    per_layer: dict[float, int] = {}
    for _, y in places.values():
        per_layer[y] = per_layer.get(y, 0) + 1
    longest = max(len(name) for name in places)
    for name, (x, y) in places.items():
        if name in hosts:
            kind = name.partition("-")[0]
            colour = _NODE_COLOURS.get(kind, _NODE_COLOURS["traffic"])
            axes.plot([x], [y], "o", color=colour, markersize=9, zorder=3)
            axes.annotate(
                name,
                (x, y),
                xytext=(0, -9),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="top",
                fontsize=8,
                annotation_clip=False,
            )
            continue
        room_inches = width_inches / per_layer[y] if y > 1 else 3 * inches_per_unit
        size = max(5.0, min(9.0, 72 * room_inches / (0.75 * longest)))
        axes.annotate(
            name,
            (x, y),
            ha="center",
            va="center",
            fontsize=size,
            color="white",
            bbox={"boxstyle": "round,pad=0.35", "facecolor": _NODE_COLOURS["switch"], "lw": 0},
            annotation_clip=False,
            zorder=4,
        )
