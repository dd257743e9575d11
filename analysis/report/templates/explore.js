// Draws each ok run as a mark: one figure per quantity, linked by the run that is chosen. The data stand in the
// page's JSON element (analysis/report/explore.py): a run is [key, arm, point, seed, slowest round, its latency in
// seconds, whether the page of timelines has it, and a value per quantity]. Canvases, since 10,000 runs in six
// figures are more elements than a page can hold. Our own code, since Vega-Lite, which was tried, adds 0.9 MB to each
// page, takes twice the processor time for 10,000 runs, and has no marks that keys or a screen reader reach.
"use strict";
(() => {
  const source = document.getElementById("run-values");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const KEY = 0, ARM = 1, POINT = 2, SEED = 3, ROUND = 4, LATENCY_S = 5, IN_TIMELINE = 6, VALUES = 7;
  const TOP = 10, RIGHT = 10, LEFT = 52, NEAR = 22;
  const element = (id) => document.getElementById(id);
  const explorer = element("explorer"), panels = element("panels"), points = element("points"), log = element("log");
  const arms = new Set(data.arms.keys());
  const shown = new Set([...data.quantities.keys()].filter((each) => data.quantities[each].shown));
  let figures = [], chosen = null, pointed = null, about, colours = {};  // about: in which quantity's figure it was chosen

  // Every marker is a polygon around 0, 0, of about radius 1, named as in matplotlib.
  const polygon = (corners, turn = 0, radius = 1) => Array.from({ length: corners }, (_, each) => {
    const angle = 2 * Math.PI * each / corners + turn;
    return [radius * Math.sin(angle), -radius * Math.cos(angle)];
  });
  const cross = [[-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1],
    [-0.35, 0.35], [-1, 0.35], [-1, -0.35], [-0.35, -0.35]];
  const turned = cross.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]);
  const MARKERS = { o: polygon(12), s: polygon(4, Math.PI / 4, 1.2), "^": polygon(3, 0, 1.25), v: polygon(3, Math.PI, 1.25),
    "<": polygon(3, -Math.PI / 2, 1.25), ">": polygon(3, Math.PI / 2, 1.25), D: polygon(4, 0, 1.2), d: polygon(4, 0, 1.2),
    P: cross, X: turned, x: turned, p: polygon(5, 0, 1.1), h: polygon(6, 0, 1.1) };
  const markerOf = (arm) => MARKERS[data.arms[arm].marker] || MARKERS.o;

  function trace(context, corners, x, y, radius) {
    if (radius < 3) { context.rect(x - radius, y - radius, 2 * radius, 2 * radius); return; }  // thousands: quick, and too small for shapes
    corners.forEach(([dx, dy], each) => context[each ? "lineTo" : "moveTo"](x + dx * radius, y + dy * radius));
    context.closePath();
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = [...data.arms.map((arm) => arm.colour), "ink", "muted", "grid", "paper"];
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  }

  const number = (value) => {
    const digits = value ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))) : 0;
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replaceAll(",", "\u202f");
  };
  const seconds = (value) => value < 0.9995 ? number(value * 1e3) + " ms" : number(value) + " s";
  const valueText = (run, quantity) => {
    const value = data.runs[run][VALUES + quantity];
    return value === null ? "\u2014" : (number(value) + " " + data.quantities[quantity].unit).trim();
  };

  function make(tag, words = "", attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = words;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function fit(canvas, width, height) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "12px system-ui, sans-serif";
    return context;
  }

  // Where marks stand: a group per point of the sweep, in it a column per arm, in that the runs in order of their seeds.
  function arrange() {
    const point = points.value === "" ? null : Number(points.value);
    const groups = data.points.map((_, each) => each).filter((each) => point === null || each === point);
    const columns = [...arms].sort((one, two) => one - two);
    const cells = new Map();
    data.runs.forEach((run, each) => {
      if (!arms.has(run[ARM]) || (point !== null && run[POINT] !== point)) return;
      const cell = groups.indexOf(run[POINT]) * columns.length + columns.indexOf(run[ARM]);
      if (!cells.has(cell)) cells.set(cell, []);
      cells.get(cell).push(each);
    });
    return { groups, columns, cells };
  }

  function layOut(figure, { groups, columns, cells }) {
    const { width, height, quantity } = figure, bottom = height - 24;
    const room = (width - LEFT - RIGHT) / Math.max(1, groups.length);
    figure.marks = [];
    figure.means = [];
    for (const [cell, runs] of cells) {
      const wide = room * (groups.length > 1 ? 0.86 : 1) / columns.length;
      const begin = LEFT + room * (Math.floor(cell / columns.length) + (groups.length > 1 ? 0.07 : 0)) + wide * (cell % columns.length);
      const measured = runs.filter((run) => data.runs[run][VALUES + quantity] !== null);
      measured.forEach((run, each) => figure.marks.push(
        { run, value: data.runs[run][VALUES + quantity], x: begin + wide * (0.12 + 0.76 * (each + 0.5) / measured.length) }));
      if (measured.length > 1) {
        const mean = measured.reduce((sum, run) => sum + data.runs[run][VALUES + quantity], 0) / measured.length;
        figure.means.push({ mean, from: begin + wide * 0.06, to: begin + wide * 0.94 });
      }
    }
    figure.marks.sort((one, two) => one.x - two.x);
    let low = Infinity, high = -Infinity;
    for (const { value } of figure.marks) { low = Math.min(low, value); high = Math.max(high, value); }
    figure.range = [low, high];
    const logarithmic = log.checked && low > 0;
    const on = logarithmic ? Math.log10 : (value) => value;
    let [first, last] = [on(low), on(high)];
    const margin = (last - first) * 0.06 || Math.abs(first) * 0.05 || 1;
    [first, last] = [first - margin, last + margin];
    figure.y = (value) => bottom - (on(value) - first) / (last - first) * (bottom - TOP);
    figure.ticks = ticks(first, last, logarithmic);
    for (const mark of figure.marks) mark.y = figure.y(mark.value);
    Object.assign(figure, { groups, columns, room, bottom });
  }

  function ticks(first, last, logarithmic) {
    if (logarithmic) {
      const found = [];
      for (let power = Math.floor(first); power <= last; power++) {
        for (const each of [1, 2, 5]) found.push(each * 10 ** power);
      }
      const inside = found.filter((each) => Math.log10(each) >= first && Math.log10(each) <= last);
      const whole = inside.length > 7 ? inside.filter((each) => Math.abs(Math.log10(each) % 1) < 1e-9) : inside;
      if (whole.length > 1) return whole;
      [first, last] = [10 ** first, 10 ** last];
    }
    const rough = (last - first) / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const found = [];
    for (let each = Math.ceil(first / step); each * step <= last; each++) found.push(Number((each * step).toPrecision(12)));
    return found;
  }

  function draw(figure) {
    const { width, height, bottom, groups, columns, room, marks } = figure;
    const context = fit(figure.canvas, width, height);
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.lineWidth = 1;
    if (!marks.length) {
      context.fillStyle = colours.muted;
      context.textAlign = "center";
      context.fillText("no values", width / 2, height / 2);
      return;
    }
    for (const tick of figure.ticks) {
      const y = Math.round(figure.y(tick)) + 0.5;
      context.strokeStyle = colours.grid;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillStyle = colours.muted;
      context.fillText(Number(tick.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 }), LEFT - 6, y);
    }
    const labels = groups.length > 1 ? groups.map((each) => data.points[each]) : columns.map((each) => data.arms[each].name);
    const each = (width - LEFT - RIGHT) / Math.max(1, labels.length);
    const wide = (words) => context.measureText(words).width + 8;
    // Where whole points do not fit beside each other, their values alone; where these do not either, every nth.
    const brief = labels.some((words) => wide(words) > each) ? labels.map((words) => words.replace(/[^,=]* = /g, " ").trim()) : labels;
    const every = Math.ceil(Math.min(110, Math.max(...brief.map(wide))) / each);
    context.textAlign = "center";
    context.fillStyle = colours.muted;
    brief.forEach((words, place) => {
      if (place % every) return;
      while (words.length > 2 && wide(words) > each * every + 4) words = words.slice(0, -2) + "\u2026";
      context.fillText(words, LEFT + each * (place + 0.5), bottom + 13);
    });
    if (groups.length > 1 && room > 24) {
      context.strokeStyle = colours.grid;
      groups.slice(1).forEach((_, place) => {
        const x = Math.round(LEFT + room * (place + 1)) + 0.5;
        context.beginPath();
        context.moveTo(x, TOP);
        context.lineTo(x, bottom);
        context.stroke();
      });
    }
    figure.radius = marks.length > 3000 ? 2 : marks.length > 400 ? 3 : 4.5;
    context.globalAlpha = marks.length > 400 ? 0.6 : 0.85;
    for (const arm of columns) {
      context.fillStyle = colours[data.arms[arm].colour];
      context.beginPath();
      for (const { run, x, y } of marks) if (data.runs[run][ARM] === arm) trace(context, markerOf(arm), x, y, figure.radius);
      context.fill();
    }
    context.globalAlpha = 1;
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    for (const { mean, from, to } of figure.means) { context.moveTo(from, figure.y(mean)); context.lineTo(to, figure.y(mean)); }
    context.stroke();
  }

  // The chosen run, and the one that is pointed at, in every figure.
  function highlight() {
    for (const figure of figures) {
      const context = fit(figure.overlay, figure.width, figure.height);
      for (const [run, wide] of [[pointed, 1.5], [chosen, 3]]) {
        const mark = run !== null && figure.marks.find((each) => each.run === run);
        if (!mark) continue;
        const arm = data.runs[run][ARM];
        context.fillStyle = colours[data.arms[arm].colour];
        context.beginPath();
        trace(context, markerOf(arm), mark.x, mark.y, figure.radius + 1);
        context.fill();
        context.strokeStyle = colours.ink;
        context.lineWidth = wide;
        context.beginPath();
        context.arc(mark.x, mark.y, figure.radius + 5, 0, 2 * Math.PI);
        context.stroke();
      }
    }
  }

  const place = (run) => "timeline.html#" + encodeURIComponent(data.runs[run][KEY]) +
    (data.runs[run][ROUND] === null ? "" : "&round=" + data.runs[run][ROUND]);

  function describe(run, quantity) {
    const [key, arm, point, seed, round, latency] = data.runs[run];
    const words = [key, data.arms[arm].name, data.points[point], "seed " + seed];
    if (quantity !== undefined) words.push(data.quantities[quantity].label + ": " + valueText(run, quantity));
    if (round !== null) words.push("slowest round " + round + " (" + seconds(latency) + ")");
    return words.filter(Boolean).join(" \u00b7 ");
  }

  // What is said of the run that is pointed at, else of the chosen one; a screen reader hears the chosen one only.
  function tell(quantity = about) {
    const run = pointed ?? chosen, told = element("told");
    told.setAttribute("aria-live", pointed === null ? "polite" : "off");
    const now = [run, quantity, ...shown].join();
    if (told.dataset.now === now) return;  // its links stay where they are
    told.dataset.now = now;
    element("said").textContent = run === null ? "No run is chosen." : describe(run, quantity);
    const links = element("links");
    links.textContent = "";
    element("all-values").textContent = "";
    told.classList.toggle("chosen", run !== null);
    if (run === null) return;
    const words = data.runs[run][ROUND] === null ? "Its timeline" : "Round " + data.runs[run][ROUND] + " in its timeline";
    if (data.runs[run][IN_TIMELINE]) links.append(make("a", words, { href: place(run), id: "to-timeline" }));
    links.append(make("a", "Its folder", { href: "../" + encodeURIComponent(data.runs[run][KEY]) + "/" }));
    for (const each of shown) {
      if (each === quantity) continue;
      element("all-values").append(make("dt", data.quantities[each].label), make("dd", valueText(run, each)));
    }
  }

  function choose(run, quantity) {
    chosen = run;
    about = quantity;
    pointed = null;
    history.replaceState(null, "", run === null ? location.pathname + location.search : "#run=" + encodeURIComponent(data.runs[run][KEY]));
    highlight();
    tell(quantity);
  }

  function nearest(figure, event) {
    const box = figure.overlay.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let found = null, least = NEAR ** 2;
    for (const mark of figure.marks) {
      const far = (mark.x - x) ** 2 + (mark.y - y) ** 2;
      if (far < least) { least = far; found = mark.run; }
    }
    return found;
  }

  function follow(run) {
    if (run !== null && data.runs[run][IN_TIMELINE]) location.href = place(run);
  }

  function onKey(figure, event) {
    const byValue = () => [...figure.marks].sort((one, two) => one.value - two.value);
    const step = (list, by) => {
      const at = list.findIndex((each) => each.run === chosen);
      return list[at < 0 ? (by > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + by))];
    };
    const act = {
      ArrowLeft: () => step(figure.marks, -1), ArrowRight: () => step(figure.marks, 1),
      ArrowDown: () => step(byValue(), -1), ArrowUp: () => step(byValue(), 1),
      Home: () => byValue()[0], End: () => byValue().pop(),
    }[event.key];
    if (act && figure.marks.length) choose(act().run, figure.quantity);
    else if (event.key === "Enter") follow(chosen);
    else if (event.key === "Escape") choose(null);
    else return;
    event.preventDefault();
  }

  function makeFigure(quantity) {
    const { label, unit, meaning } = data.quantities[quantity];
    const box = make("figure"), stack = make("div", "", { class: "stack" });
    const canvas = make("canvas", "", { "aria-hidden": "true" });
    const overlay = make("canvas", "", { tabindex: "0", role: "application", "aria-roledescription": "figure", "aria-describedby": "keys" });
    const figure = { quantity, box, canvas, overlay, marks: [], means: [] };
    box.append(make("h3", unit ? label + " (" + unit + ")" : label), stack, make("figcaption", meaning));
    stack.append(canvas, overlay);
    overlay.addEventListener("pointermove", (event) => {
      const run = nearest(figure, event);
      overlay.style.cursor = run === null ? "default" : "pointer";
      if (run === pointed) return;
      pointed = run;
      highlight();
      tell(run === null ? undefined : quantity);
    });
    overlay.addEventListener("pointerleave", () => { pointed = null; highlight(); tell(); });
    overlay.addEventListener("click", (event) => choose(nearest(figure, event), quantity));
    overlay.addEventListener("dblclick", (event) => follow(nearest(figure, event)));
    overlay.addEventListener("keydown", (event) => onKey(figure, event));
    figure.label = () => {
      const [low, high] = figure.range.map((each) => (number(each) + " " + unit).trim());
      return label + ": " + (figure.marks.length ? figure.marks.length + " runs from " + low + " to " + high : "no values");
    };
    return figure;
  }

  function redraw() {
    const arranged = arrange();
    for (const figure of figures) {
      figure.width = Math.max(200, figure.box.querySelector(".stack").clientWidth);
      figure.height = 230;
      layOut(figure, arranged);
      figure.overlay.setAttribute("aria-label", figure.label());
      draw(figure);
    }
    highlight();
  }

  function rebuild() {
    const before = new Map(figures.map((each) => [each.quantity, each]));
    figures = [...shown].sort((one, two) => one - two).map((each) => before.get(each) || makeFigure(each));
    panels.replaceChildren(...figures.map((each) => each.box));
    redraw();
    tell();
  }

  // A box to tick for each arm (with its marker) or quantity.
  function choices(id, names, on, changed) {
    names.forEach((name, each) => {
      const label = make("label"), box = make("input", "", { type: "checkbox" });
      box.checked = on.has(each);
      box.addEventListener("change", () => { on[box.checked ? "add" : "delete"](each); changed(); });
      label.append(box);
      if (on === arms) label.append(make("canvas", "", { class: "marker", "aria-hidden": "true" }));
      label.append(make("span", name));
      element(id).append(label);
    });
  }

  function drawMarkers() {
    document.querySelectorAll("#arms .marker").forEach((canvas, arm) => {
      const context = fit(canvas, 14, 14);
      context.fillStyle = colours[data.arms[arm].colour];
      trace(context, markerOf(arm), 7, 7, 5);
      context.fill();
    });
  }

  function readHash() {
    let key = "";
    try { key = decodeURIComponent(location.hash.slice(1)); } catch { /* not one of ours */ }
    if (!key.startsWith("run=")) return;
    const run = data.runs.findIndex((each) => each[KEY] === key.slice(4));
    if (run < 0) return;
    choose(run);
    explorer.scrollIntoView({ block: "start" });
  }

  function recolour() { readColours(); drawMarkers(); redraw(); }

  explorer.hidden = false;
  data.points.forEach((point, each) => points.append(make("option", point, { value: each })));
  points.parentElement.hidden = data.points.length < 2;
  choices("arms", data.arms.map((arm) => arm.name), arms, redraw);
  choices("quantities", data.quantities.map((each) => each.label), shown, rebuild);
  points.addEventListener("change", redraw);
  log.addEventListener("change", redraw);
  readColours();
  drawMarkers();
  rebuild();
  readHash();
  window.addEventListener("hashchange", readHash);
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
})();
