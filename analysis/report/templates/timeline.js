// Draws one run's lanes on one axis of time. The data stand in the page's JSON elements.
"use strict";
(() => {
  const runs = new Map();
  for (const element of document.querySelectorAll("script.run")) {
    const run = JSON.parse(element.textContent);
    runs.set(run.key, run);
  }
  const canvas = document.getElementById("canvas");
  const context = canvas.getContext("2d");
  const menu = document.getElementById("run");
  const readout = document.getElementById("readout");
  let run, lanes, from, to, cursor = null, selection = null, width = 0, height = 0, left = 0;
  const RIGHT = 12, TOP = 26, GAP = 14;

  const colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["blue", "orange", "green", "purple", "gold", "steel", "ink", "muted",
      "grid", "paper", "bad", "loss-band", "other-band"]) {
      colours[name] = style.getPropertyValue("--" + name).trim();
    }
    colours.list = ["blue", "orange", "green", "purple", "gold", "steel"].map((each) => colours[each]);
  }

  const seconds = (value) => value < 0.9995 ? (value * 1e3).toPrecision(3) + " ms" : value.toFixed(2) + " s";
  const bytes = (value) => value >= 1e6 ? (value / 1e6).toPrecision(3) + " MB" : (value / 1e3).toPrecision(3) + " kB";
  const rate = (value) => (value / 1e6).toPrecision(3) + " Mbit/s";
  const share = (value) => Math.round(value * 100) + " %";

  // Where in a list sorted by its first column the last entry at or before a value stands.
  function last(list, value, column = 0) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle][column] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  function makeLanes() {
    lanes = [];
    if (run.impairments.length) {
      lanes.push({ title: "impairments", rows: run.impairments, height: 18 * run.impairments.length, draw: drawImpairments });
    }
    if (run.rounds.length) {
      lanes.push({ title: "round latency", height: 70, unit: seconds, draw: drawLatency,
        most: Math.max(...run.rounds.map((each) => each[3] || 0)) || 1 });
    }
    for (const queue of run.queues) {
      const busy = queue.dropped || queue.highest > 0.15 * (queue.limit || 0);
      lanes.push({ title: "queue " + queue.name, queue, height: busy ? 58 : 26, unit: bytes, draw: drawQueue,
        most: Math.max(queue.highest, queue.limit || 0) || 1 });
    }
    if (run.workers.length) {
      lanes.push({ title: "workers", rows: run.workers, height: 18 * run.workers.length, draw: drawWorkers });
    }
    for (const [name, title, unit] of [["windows", "congestion window", bytes], ["rates", "rate", rate],
      ["round_trips", "round trip", seconds], ["processes", "CPU, share of a core", share]]) {
      const series = run[name];
      if (!series.length) continue;
      let most = 0;
      for (const each of series) for (const [, , high] of each.values) most = Math.max(most, high);
      lanes.push({ title, series, height: 84, unit, most: most || 1, draw: drawSeries });
    }
    let y = TOP;
    for (const lane of lanes) {
      lane.y = y + 15;
      y = lane.y + lane.height + GAP;
    }
    height = y;
  }

  const x = (time) => left + (time - from) / (to - from) * (width - left - RIGHT);
  const timeAt = (position) => from + (position - left) / (width - left - RIGHT) * (to - from);

  function resize() {
    width = canvas.parentElement.clientWidth;
    left = width < 600 ? 74 : 128;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = height + "px";
    context.setTransform(scale, 0, 0, scale, 0, 0);
    draw();
  }

  function text(words, at, y, align = "left", colour = colours.ink, room = Infinity) {
    context.fillStyle = colour;
    context.textAlign = align;
    if (context.measureText(words).width > room) {
      while (words.length > 1 && context.measureText(words + "\u2026").width > room) words = words.slice(0, -1);
      words += "\u2026";
    }
    context.fillText(words, at, y);
  }

  function draw() {
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    drawAxis();
    for (const lane of lanes) {
      context.font = "600 12px system-ui, sans-serif";
      text(lane.title, 8, lane.y - 9);
      const titled = 8 + context.measureText(lane.title).width + 18;
      context.font = "12px system-ui, sans-serif";
      if (lane.series) drawNames(lane, titled);
      if (lane.most) {
        text(lane.unit(lane.most), left - 6, lane.y + 6, "right", colours.muted);
        text("0", left - 6, lane.y + lane.height - 5, "right", colours.muted);
        context.strokeStyle = colours.grid;
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(left, lane.y + lane.height + 0.5);
        context.lineTo(width - RIGHT, lane.y + lane.height + 0.5);
        context.stroke();
      }
      context.save();
      context.beginPath();
      context.rect(left, lane.y - 2, width - left - RIGHT, lane.height + 4);
      context.clip();
      if (lane.draw !== drawImpairments) drawBands(lane);
      lane.draw(lane);
      context.restore();
      if (lane.rows) {
        lane.rows.forEach((row, index) =>
          text(row.name, left - 6, lane.y + 18 * index + 9, "right", colours.muted, left - 10));
      }
    }
    drawSelection();
  }

  function drawAxis() {
    const rough = (to - from) / Math.max(2, (width - left) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    context.strokeStyle = colours.grid;
    context.lineWidth = 1;
    for (let tick = Math.ceil(from / step - 1e-9); tick * step <= to; tick++) {
      const at = Math.round(x(tick * step)) + 0.5;
      context.beginPath();
      context.moveTo(at, TOP - 6);
      context.lineTo(at, height);
      context.stroke();
      text((tick * step).toFixed(digits) + " s", at, 10, "center", colours.muted);
    }
  }

  function drawBands(lane) {
    context.globalAlpha = 0.55;
    context.fillStyle = colours["loss-band"];
    for (const each of run.impairments) {
      for (const [, begin, , end] of each.bars) {
        if (end < from || begin > to) continue;
        context.fillRect(x(begin), lane.y - 2, Math.max(1, x(end) - x(begin)), lane.height + 4);
      }
    }
    context.globalAlpha = 1;
  }

  // In force: filled; planned: outlined, which shows only where the two differ.
  function drawImpairments(lane) {
    lane.rows.forEach((row, index) => {
      const y = lane.y + 18 * index + 2;
      for (const [planned, begin, plannedEnd, end] of row.bars) {
        if (Math.max(end, plannedEnd) < from || Math.min(begin, planned) > to) continue;
        context.fillStyle = colours.bad;
        context.globalAlpha = 0.8;
        context.fillRect(x(begin), y, Math.max(2, x(end) - x(begin)), 14);
        context.globalAlpha = 1;
        context.strokeStyle = colours.ink;
        context.lineWidth = 1;
        context.strokeRect(x(planned) + 0.5, y + 0.5, Math.max(1, x(plannedEnd) - x(planned)), 13);
      }
    });
  }

  function drawWorkers(lane) {
    const kinds = [colours.steel, colours.blue, colours.green];
    lane.rows.forEach((row, index) => {
      const y = lane.y + 18 * index + 2;
      for (const [kind, begin, end] of row.bars) {
        if (end < from || begin > to) continue;
        const at = x(begin), wide = Math.max(0.7, x(end) - at);
        context.fillStyle = kinds[kind];
        context.fillRect(at, y, wide, 14);
      }
    });
  }

  function drawLatency(lane) {
    for (const [number, begin, end, latency, critical] of run.rounds) {
      if (end < from || begin > to || latency === null) continue;
      const high = Math.max(1, latency / lane.most * lane.height);
      context.fillStyle = critical ? colours.gold : colours.blue;
      const wide = x(end) - x(begin);
      context.fillRect(x(begin), lane.y + lane.height - high, Math.max(0.7, wide - (wide > 4 ? 1 : 0)), high);
      if (wide > 26) text(String(number), (x(begin) + x(end)) / 2, lane.y + lane.height - 8, "center", colours.paper);
    }
  }

  // Lowest and highest value per column of pixels, from the intervals that fall into it.
  function columns(values, visit) {
    let place = Math.max(0, last(values, from / run.step));
    let column = null, low = 0, high = 0;
    let before = null;
    for (; place < values.length; place++) {
      const [interval, lowest, highest] = values[place];
      const time = interval * run.step;
      if (time > to) break;
      const at = Math.round(Math.max(left, x(time)));
      if (column !== null && at === column) {
        low = Math.min(low, lowest);
        high = Math.max(high, highest);
        before = [lowest, highest];
        continue;
      }
      if (column !== null) visit(column, low, high, at, before);
      column = at; low = lowest; high = highest; before = [lowest, highest];
    }
    if (column !== null) visit(column, low, high, Math.round(Math.min(width - RIGHT, x(run.duration))), before);
  }

  function drawQueue(lane) {
    const scale = (value) => lane.y + lane.height - value / lane.most * lane.height;
    const bottom = lane.y + lane.height;
    columns(lane.queue.bytes, (at, low, high, next, [, lastHigh]) => {
      context.fillStyle = colours.blue;
      context.fillRect(at, scale(high), 1, bottom - scale(high));
      if (next > at + 1) context.fillRect(at + 1, scale(lastHigh), next - at - 1, bottom - scale(lastHigh));
    });
    if (lane.queue.limit) {
      context.strokeStyle = colours.muted;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(left, scale(lane.queue.limit) + 0.5);
      context.lineTo(width - RIGHT, scale(lane.queue.limit) + 0.5);
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = colours.orange;
    for (const [interval] of lane.queue.drops) {
      const time = interval * run.step;
      if (time < from - run.step || time > to) continue;
      context.fillRect(x(time), lane.y - 2, Math.max(2, x(time + run.step) - x(time)), 5);
    }
  }

  function drawSeries(lane) {
    const scale = (value) => lane.y + lane.height - value / lane.most * lane.height;
    lane.series.forEach((series, index) => {
      context.strokeStyle = colours.list[index % colours.list.length];
      context.lineWidth = 1.2;
      context.setLineDash(index >= colours.list.length ? [4, 2] : []);
      context.beginPath();
      let begun = false;
      columns(series.values, (at, low, high, next, [lastLow, lastHigh]) => {
        if (begun) context.lineTo(at + 0.5, scale(high)); else context.moveTo(at + 0.5, scale(high));
        begun = true;
        if (low !== high) context.lineTo(at + 0.5, scale(low));
        const rest = (lastLow + lastHigh) / 2;
        context.lineTo(Math.max(at + 0.5, next - 0.5), scale(rest));
      });
      context.stroke();
      context.setLineDash([]);
    });
  }

  // The series' names in their colours, as many as there is room for.
  function drawNames(lane, at) {
    lane.series.every((series, index) => {
      const wide = context.measureText(series.name).width + 16;
      if (at + wide > width - RIGHT) {
        text("\u2026", at, lane.y - 9, "left", colours.muted);
        return false;
      }
      const dashed = index >= colours.list.length ? "\u254c " : "";
      text(dashed + series.name, at, lane.y - 9, "left", colours.list[index % colours.list.length]);
      at += wide + (dashed ? context.measureText(dashed).width : 0);
      return true;
    });
  }

  function drawSelection() {
    if (selection) {
      context.fillStyle = colours.blue;
      context.globalAlpha = 0.18;
      context.fillRect(Math.min(...selection), 0, Math.abs(selection[1] - selection[0]), height);
      context.globalAlpha = 1;
    }
    if (cursor !== null && cursor >= from && cursor <= to) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(cursor), TOP - 6);
      context.lineTo(x(cursor), height);
      context.stroke();
    }
  }

  const valueAt = (values, time) => {
    const place = last(values, time / run.step);
    return place < 0 ? null : values[place][2];
  };

  // What each lane says at the cursor; in a lane of many series, the one that the pointer is in.
  function tell(y) {
    if (cursor === null) { readout.textContent = "Point at the chart to read its values."; return; }
    const words = [cursor.toFixed(to - from < 1 ? 4 : 3) + " s"];
    const place = last(run.rounds, cursor, 1);
    if (place >= 0 && run.rounds[place][2] >= cursor) {
      const [number, , , latency, critical] = run.rounds[place];
      words.push("round " + number + (critical ? " (critical)" : "") + (latency === null ? "" : ", latency " + seconds(latency)));
    }
    for (const each of run.impairments) {
      if (each.bars.some(([, begin, , end]) => begin <= cursor && cursor <= end)) words.push("in force: " + each.name);
    }
    for (const queue of run.queues.slice(0, 2)) {
      const value = valueAt(queue.bytes, cursor);
      if (value !== null) words.push("queue " + queue.name + " " + bytes(value));
    }
    const lane = lanes.find((each) => y >= each.y - 15 && y <= each.y + each.height + 4);
    if (lane && lane.series) {
      for (const each of lane.series) {
        const value = valueAt(each.values, cursor);
        if (value !== null) words.push(each.name + " " + lane.unit(value));
      }
    } else if (lane && lane.queue && run.queues.indexOf(lane.queue) > 1) {
      const value = valueAt(lane.queue.bytes, cursor);
      if (value !== null) words.push("queue " + lane.queue.name + " " + bytes(value));
    }
    readout.textContent = words.join(" \u00b7 ");
  }

  function show(begin, end) {
    const least = Math.min(run.duration, 0.002);
    let span = Math.min(run.duration, Math.max(least, end - begin));
    begin = Math.min(Math.max(0, begin + (end - begin - span) / 2), run.duration - span);
    from = begin; to = begin + span;
    draw();
  }
  const zoom = (factor, centre = (from + to) / 2) => show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  const move = (part) => show(from + part * (to - from), to + part * (to - from));

  function choose(key) {
    run = runs.get(key) || runs.values().next().value;
    menu.value = run.key;
    from = 0; to = run.duration; cursor = null; selection = null;
    makeLanes();
    resize();
    tell(0);
    const facts = run.sampler, words = [];
    if (facts.reached_hz) words.push("sampled at " + facts.reached_hz.toFixed(1) + " Hz");
    if (facts.largest_gap_s) words.push("largest gap " + seconds(facts.largest_gap_s));
    if (facts.cpu_share) words.push("the sampler used " + (facts.cpu_share * 100).toFixed(1) + " % of a core");
    if (!words.length) words.push("This run has no samples of queues, flows and processes");
    document.getElementById("facts").textContent = words.join(", ") + ".";
  }

  // `#KEY` names a run, `#KEY&round=14` a round of it: that is shown with what lies around it.
  function readHash() {
    const [key, number] = location.hash.slice(1).split("&round=");
    let wanted = "";
    try { wanted = decodeURIComponent(key); } catch { /* not one of ours */ }
    choose(wanted);
    const round = number && run.key === wanted && run.rounds.find((each) => String(each[0]) === number);
    if (!round) return;
    const [, begin, end] = round;
    cursor = (begin + end) / 2;
    show(begin - (end - begin), end + (end - begin));
    tell(0);
  }

  // Pointers: one mouse selects or, with Shift, moves; one finger moves, two zoom.
  const pointers = new Map();
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event)[0]);
    if (event.pointerType === "mouse" && !event.shiftKey && event.button === 0) selection = [place(event)[0], place(event)[0]];
  });
  canvas.addEventListener("pointermove", (event) => {
    const [at, y] = place(event);
    cursor = timeAt(at);
    const before = pointers.get(event.pointerId);
    if (selection) {
      selection[1] = at;
    } else if (before !== undefined && pointers.size === 1) {
      pointers.set(event.pointerId, at);
      const by = timeAt(before) - timeAt(at);
      show(from + by, to + by);
    } else if (before !== undefined && pointers.size === 2) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, value]) => value);
      const fixed = timeAt(other), held = timeAt(before);
      pointers.set(event.pointerId, at);
      if (Math.abs(at - other) > 8) zoom((before - other) / (at - other) > 0 ? (before - other) / (at - other) : 1, fixed);
    }
    draw();
    tell(y);
  });
  function release(event) {
    pointers.delete(event.pointerId);
    if (selection) {
      const [first, second] = selection.map(timeAt);
      const wide = Math.abs(selection[1] - selection[0]) > 5;
      selection = null;
      if (wide && event.type === "pointerup") show(Math.min(first, second), Math.max(first, second)); else draw();
    }
  }
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (!pointers.size) { cursor = null; draw(); tell(0); } });
  canvas.addEventListener("dblclick", () => show(0, run.duration));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002), timeAt(place(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => show(0, run.duration) }[event.key];
    if (act) { act(); event.preventDefault(); }
  });
  document.getElementById("closer").addEventListener("click", () => zoom(0.5));
  document.getElementById("wider").addEventListener("click", () => zoom(2));
  document.getElementById("all").addEventListener("click", () => show(0, run.duration));
  menu.addEventListener("change", () => { history.replaceState(null, "", "#" + encodeURIComponent(menu.value)); choose(menu.value); });
  window.addEventListener("hashchange", readHash);
  window.addEventListener("resize", resize);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  readColours();
  readHash();
})();
