"""Writes the page of `oscar eval report`: one HTML file from the JSON files of its steps, figures drawn by matplotlib as SVG.

Usage: python3 - FOLDER PAGE. FOLDER/plan.json lists the steps. Prints one line when matplotlib is missing: the page then has
tables only, and says so. Or python3 - --plot REPORT.json FIGURE.svg: the results of `oscar bench` as one figure.
"""

import html
import io
import json
import os
import re
import sys

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot
except ImportError:
    pyplot = None

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2", "#3ca951", "#9498a0", "#97bbf5", "#ff8ab7"]
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1b1e23; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #d0d4da }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; font-size: 0.85rem }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #e4e7ec } th:first-child, td:first-child { text-align: left }
th { font-weight: 600 } caption { text-align: left; color: #586069; padding-bottom: 0.3rem }
pre { background: #f4f5f7; padding: 0.6rem 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.8rem } figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
figcaption, .note { color: #586069; font-size: 0.85rem } .warning { background: #fff4d6; padding: 0.6rem 0.8rem }
.scroll { overflow-x: auto }
"""


def text_of(value):
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value == 0:
            return "0"
        return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"
    return str(value)


def table_of(rows, caption=""):
    if not rows:
        return ""
    keys = list(rows[0])
    head = "".join(f"<th>{html.escape(key.replace('_', ' '))}</th>" for key in keys)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text_of(row[key]))}</td>" for key in keys) + "</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(title, content):
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>" if content else ""


class Figures:
    """Draws, and numbers what it draws so that no two figures share an id."""

    def __init__(self):
        self.colours = {}
        self.count = 0

    def colour(self, name):
        return self.colours.setdefault(name, COLOURS[len(self.colours) % len(COLOURS)])

    def draw(self, figure):
        """The figure as SVG text."""
        self.count += 1
        matplotlib.rcParams["svg.hashsalt"] = f"oscar-{self.count}"
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
        drawn = out.getvalue()
        drawn = drawn[drawn.index("<svg"):]
        drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
        names = set(re.findall(r'\bid="([^"]+)"', drawn))
        drawn = re.sub(r'\bid="([^"]+)"', lambda m: f'id="f{self.count}-{m.group(1)}"', drawn)
        return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m.group(1) + (f"f{self.count}-" if m.group(2) in names else "") + m.group(2), drawn)

    def svg(self, figure, caption):
        return f"<figure>{self.draw(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>"

    def panels(self, count, columns):
        columns = min(columns, count)
        rows = -(-count // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(3.4 * columns, 2.5 * rows), squeeze=False)
        flat = [axis for line in axes for axis in line]
        for axis in flat[count:]:
            axis.set_visible(False)
        figure.set_layout_engine("constrained")
        return figure, flat[:count]

    def lines(self, panels, x_and_series, rows, caption, columns=4):
        """One panel per (key, title), a line per value of the series' key; logarithmic where all values are positive."""
        return self.svg(self.line_figure(panels, x_and_series, rows, columns), caption)

    def line_figure(self, panels, x_and_series, rows, columns, log=True):
        x_key, series_key = x_and_series
        figure, axes = self.panels(len(panels), columns)
        names = list(dict.fromkeys(row[series_key] for row in rows))
        for axis, (key, title) in zip(axes, panels):
            positive = True
            for name in names:
                points = [(row[x_key], row[key]) for row in rows if row[series_key] == name and isinstance(row[key], (int, float))]
                positive = positive and all(y > 0 for _, y in points)
                axis.plot([x for x, _ in points], [y for _, y in points], label=name, color=self.colour(name), linewidth=1.4,
                          marker="o" if len(points) < 12 else None, markersize=3)
            if log and positive and names:
                axis.set_yscale("log")
            elif not log:
                axis.set_ylim(bottom=0)
            axis.set_title(title, fontsize=9)
            axis.tick_params(which="both", labelsize=7)
            axis.grid(alpha=0.25)
        for axis in axes[-columns:]:
            axis.set_xlabel(x_key.replace("_", " "), fontsize=8)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, max(1, len(labels))), fontsize=8, frameon=False)
        return figure

    def bars(self, entries, unit, caption, log=True):
        """A bar per (label, name that gives the colour, value)."""
        figure, (axis,) = self.panels(1, 1)
        figure.set_size_inches(7, 0.5 + 0.32 * len(entries))
        values = [value for _, _, value in entries]
        axis.barh(range(len(entries)), values, color=[self.colour(name) for _, name, _ in entries])
        axis.set_yticks(range(len(entries)), [label for label, _, _ in entries], fontsize=8)
        axis.invert_yaxis()
        if log and values and all(value > 0 for value in values):
            axis.set_xscale("log")
        for at, value in enumerate(values):
            axis.annotate(" " + text_of(float(value)), (value, at), va="center", fontsize=7)
        axis.margins(x=0.15)
        axis.tick_params(axis="x", which="both", labelsize=7)
        axis.set_xlabel(unit, fontsize=8)
        return self.svg(figure, caption)


def bits_label(row):
    return f"{row['kv']} ({row['bits_per_element']:.2f} bits)"


# What one asks of a method: how much less it diverges than another of the same or more bytes.
PAIRS = [("int2:balanced", "int2:oscar"), ("int2:balanced", "kivi"), ("int1:balanced", "int2:oscar"), ("int1:balanced", "kivi")]


def ratio_tables(methods):
    divergences, perplexities = [], []
    for window in dict.fromkeys(row["window_tokens"] for row in methods):
        rows = {row["kv"]: row for row in methods if row["window_tokens"] == window}
        for method, other in PAIRS:
            if method in rows and other in rows and rows[other]["kl_mean_nats"] > 0 and rows[method]["kl_mean_nats"] > 0:
                divergences.append({"window_tokens": window, "method": method, "other": other, "KL_over_KL": rows[method]["kl_mean_nats"] / rows[other]["kl_mean_nats"],
                                    "times_less": rows[other]["kl_mean_nats"] / rows[method]["kl_mean_nats"]})
        exact = next((row for name, row in rows.items() if name.startswith("exact")), None)
        if exact:
            perplexities += [{"window_tokens": window, "method": name, "perplexity_over_exact": row["perplexity"] / exact["perplexity"]}
                             for name, row in rows.items() if row is not exact]
    return table_of(divergences, "Divergence of a method against that of another") + table_of(perplexities, "Perplexity against that of the exact cache")


def kl_section(figures, report):
    methods = [row for row in report["methods"] if row.get("kl_mean_nats", 0) > 0]
    parts = []
    if figures and methods:
        parts.append(figures.bars([(bits_label(row), row["kv"], row["kl_mean_nats"]) for row in methods], "nats per token", "KL divergence from the exact cache, nats per token; stored bits per element, windows included."))
    buckets = [row for row in report.get("buckets", []) if row["kl_mean_nats"] > 0]
    if figures and buckets:
        parts.append(figures.lines([("kl_mean_nats", "KL, nats per token"), ("perplexity", "perplexity")], ("first_position", "kv"), buckets,
                                   "By position in the window.", columns=2))
    parts.append(table_of(report["methods"]))
    parts.append(ratio_tables(report["methods"]))
    parts.append(folded("By position", table_of(report.get("buckets", []))))
    return "".join(parts)


def needle_section(figures, report):
    drawn = ""
    codes, answers = report.get("codes", []), report.get("tasks", [])
    if figures and codes:
        drawn += figures.bars([(f"{bits_label(row)}, {row['length_tokens']} tokens", row["kv"], row["codes_recalled"]) for row in codes], "codes",
                              "Whole codes recalled under teacher forcing.", log=False)
    if figures and answers:
        names = list(dict.fromkeys(row["kv"] for row in answers))
        means = {name: [row["score_mean"] for row in answers if row["kv"] == name] for name in names}
        drawn += figures.bars([(name, name, sum(means[name]) / len(means[name])) for name in names], "score", "Mean score over the tasks, greedy answers.", log=False)
    return drawn + table_of(codes) + table_of(answers)


def tasks_section(figures, report):
    drawn = ""
    if figures:
        drawn = figures.bars([(row["kv"], row["kv"], row["pass_rate"]) for row in report["methods"]], "share", f"pass@1 on {report['items']} items of {report['suite']}.", log=False)
    return drawn + table_of(report["methods"])


CHAIN_PANELS = [("key_error", "K"), ("value_error", "V"), ("score_error", "scores"), ("attention_kl_nats", "attention (KL)"),
                ("output_error", "attention block output"), ("hidden_error", "hidden state"), ("key_codec_error", "K, codec alone"),
                ("value_codec_error", "V, codec alone")]


def error_chain_section(figures, report):
    drawn = ""
    if figures:
        drawn = figures.lines(CHAIN_PANELS, ("layer", "kv"), report["layers"],
                              "Relative mean squared error against the pass over the exact cache, by layer; attention: KL of the probabilities, nats.")
    return drawn + table_of(report["methods"], "At the logits") + folded("By layer", table_of(report["layers"]))


def basis_section(figures, report):
    drawn = ""
    if figures:
        panels = [("error", "weighted error"), ("range", "range / rms"), ("energy_spread", "channel energy, max/mean"), ("importance_spread", "importance, max/mean")]
        for side, name in (("K", "Keys"), ("V", "Values")):
            drawn += figures.lines(panels, ("layer", "basis"), [row for row in report["layers"] if row["side"] == side], f"{name} in each basis, by layer.")
        drawn += spectra_figure(figures, report["spectra"])
    return drawn + table_of(report["means"], "Means over the layers") + folded("By layer", table_of(report["layers"])) + folded("Spectra", table_of(report["spectra"]))


def spectra_figure(figures, spectra):
    groups = list(dict.fromkeys(row["of"] for row in spectra))
    figure, axes = figures.panels(len(groups), 4)
    for axis, of in zip(axes, groups):
        for basis in dict.fromkeys(row["basis"] for row in spectra if row["of"] == of):
            rows = [row for row in spectra if row["of"] == of and row["basis"] == basis]
            keys = [key for key in rows[0] if key.startswith("share_of_")]
            axis.plot([int(key[len("share_of_"):]) for key in keys], [sum(row[key] for row in rows) / len(rows) for key in keys], marker="o", markersize=3,
                      label=basis, color=figures.colour(basis))
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 1.02)
        axis.set_title(of, fontsize=9)
        axis.tick_params(which="both", labelsize=7)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, frameon=False)
    return figures.svg(figure, "Share of the trace in the largest eigenvalues, mean over the layers.")


def ablation_section(figures, report):
    drawn = ""
    if figures:
        entries = [(f"{row['sweep']} {row['value']} ({row['bits_per_element']:.2f} bits)", row["sweep"], row["kl_mean_nats"]) for row in report["settings"]]
        drawn = figures.bars(entries, "nats per token", f"{report['kv']} with one choice changed.")
    return drawn + table_of(report["settings"])


SECTIONS = {"eval kl": kl_section, "eval needle": needle_section, "eval error-chain": error_chain_section, "eval basis": basis_section,
            "eval ablation": ablation_section, "eval tasks": tasks_section}


SPEED_PANELS = [("prefill_tokens_per_second", "prefill, tokens/s"), ("decode_tokens_per_second", "decode, tokens/s"), ("resident_mebibytes", "memory added, MiB"),
                ("milliseconds", "time, ms"), ("share_of_ceiling", "share of the ceiling")]


def speed_plot(report):
    """What a `bench` command measured by context length, as SVG."""
    rows = [dict(cell) for cell in report["cells"]]
    for row in rows:
        if row.get("resident_bytes") is not None:
            row["resident_mebibytes"] = row["resident_bytes"] / 2**20
    panels = [(key, title) for key, title in SPEED_PANELS if any(row.get(key) is not None for row in rows)]
    for row in rows:
        for key, _ in panels:
            row.setdefault(key, None)
    figures = Figures()
    figure = figures.line_figure(panels, ("context_tokens", "kv"), rows, columns=len(panels), log=False)
    contexts = sorted({row["context_tokens"] for row in rows})
    for axis in figure.axes[:len(panels)]:
        if len(contexts) > 1:
            axis.set_xscale("log", base=2)
        axis.set_xticks(contexts, [str(context) for context in contexts])
        axis.minorticks_off()
    figure.suptitle(f"{report['model']}, {report['threads']} threads", fontsize=10)
    return figures.draw(figure)


def facts_of(report):
    return ", ".join(f"{key.replace('_', ' ')} {text_of(value)}" for key, value in report.items() if key not in ("command", "model") and not isinstance(value, list))


def page_of(folder):
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    figures = Figures() if pyplot else None
    parts = []
    for step in plan["steps"]:
        if not step["result"]:
            continue
        with open(os.path.join(folder, step["result"]), encoding="utf-8") as file:
            report = json.load(file)
        parts.append(f"<h2>{html.escape(step['title'])}</h2><p class=\"note\">{html.escape(facts_of(report))}</p>")
        parts.append(SECTIONS[report["command"]](figures, report))
        parts.append(f"<p class=\"note\">Measured by:</p><pre>{html.escape(step['command'])}</pre>")
    for step in plan["steps"]:
        if not step["result"]:
            parts.append(f"<p class=\"note\">{html.escape(step['title'])}:</p><pre>{html.escape(step['command'])}</pre>")
    warning = "" if pyplot else '<p class="warning">No figures: the Python that made this page has no matplotlib.</p>'
    title = f"oscar: {plan['model']}"
    return ("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
            f"<p class=\"note\">oscar {html.escape(plan['version'])}, {html.escape(plan['machine'])}. Bits per element count codes, scales, offsets and BF16 windows. "
            f"The page is drawn again by the command below; steps that are measured already are not run again.</p><pre>{html.escape(plan['redraw'])}</pre>"
            f"{warning}{''.join(parts)}</body></html>\n")


def main():
    if sys.argv[1] == "--plot":
        with open(sys.argv[2], encoding="utf-8") as file:
            drawn = speed_plot(json.load(file))
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            file.write(drawn)
        return
    folder, page = sys.argv[1:]
    content = page_of(folder)
    with open(page + ".part", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(page + ".part", page)
    if pyplot is None:
        print("no matplotlib")


try:
    main()
except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
    sys.exit(f"the measurements cannot be drawn: {type(error).__name__}: {error}")
