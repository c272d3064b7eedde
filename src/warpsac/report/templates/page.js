"use strict";
/* Charts are SVG drawn from the JSON in #data; tables are in the page already; this script only makes them sortable. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const root = document.documentElement;
  const state = { x: "steps", y: "score", hidden: new Set(), off: new Set(), published: true, paper: false };
  root.dataset.mode = data.mode;

  // --- numbers as text

  const minus = (text) => text.replaceAll("-", "\u2212");
  const power = (v) => minus(v.toExponential(2).replace(/\.?0+e/, "e").replace("+", "")); // for numbers with too many digits to read
  const compact = (v) => {
    if (Math.abs(v) >= 1e13) return power(v);
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(v) >= size) return minus(+(v / size).toPrecision(4) + unit);
    }
    return minus(String(+v.toPrecision(6)));
  };
  const seconds = (v, unit) => +(v / unit.size).toPrecision(4) + "\u202f" + unit.name;
  const timeUnit = (span) =>
    span > 2 * 3600 ? { size: 3600, name: "h" } : span > 180 ? { size: 60, name: "min" } : { size: 1, name: "s" };
  const value = (v) => Math.abs(v) >= 1e8 ? power(v) :
    minus(Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en-US") : Math.abs(v) >= 20 ? v.toFixed(1) : v.toFixed(3));
  const position = (kind, v, unit) =>
    kind === "steps" ? v.toLocaleString("en-US") + " steps" : kind === "share" ? (100 * v).toFixed(0) + " %" : seconds(v, unit);

  /** Round steps of 1, 2 or 5 times a power of ten that divide the span into about `count` parts. */
  function ticks(low, high, count, unit = 1) {
    const span = (high - low) / unit || 1;
    const rough = span / count;
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * ten >= rough * 0.7) * ten * unit;
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    // Beyond 2^53, adding one changes nothing: count positions instead.
    return Array.from({ length: Math.min(last - first + 1, 4 * count) || 0 }, (_, i) => (first + i) * step);
  }

  // --- drawing

  const NS = "http://www.w3.org/2000/svg";
  function node(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (parent) parent.append(made);
    return made;
  }
  const colour = (series) => (series.published ? `var(--${series.published})` : `var(--g${series.g})`);
  const seriesName = (series) => (series.published ? series.published + ", published" : data.groups[series.g]);
  const isHidden = (series) =>
    series.published
      ? state.off.has(series.published) || (!state.published && data.mode !== "published")
      : state.hidden.has(series.g);

  function draw(figure) {
    const chart = data.charts[figure.dataset.chart];
    const side = chart[state.x];
    figure.replaceChildren();
    figure.view = null;
    figure.at = undefined;
    if (!side || !side.series.length) {
      const empty = document.createElement("p");
      empty.className = "empty";
      const ofTask = figure.dataset.chart.startsWith("task");
      empty.textContent = state.x === "wall" ? "no wall times to compare" : ofTask ? "no evaluations to draw" : "nothing to compare over steps";
      figure.append(empty);
      return;
    }
    const raw = state.y === "raw" && chart.bounds;
    const shown = raw ? (v) => chart.bounds[0] + v * (chart.bounds[1] - chart.bounds[0]) : (v) => v;
    const big = figure.classList.contains("big");
    // On paper a chart is as wide as its place on the page, whatever the window, so that the text keeps its size.
    const wide = big ? !figure.closest(".two").querySelector(".against") : figure.closest(".lone");
    const width = state.paper ? (wide ? 430 : big ? 400 : 330) : Math.max(figure.clientWidth - (big ? 28 : 0) || 400, 240);
    const height = Math.round(Math.min(width * (big ? 0.56 : 0.6), 380));
    const all = side.series;
    const numbers = (pick) => all.flatMap(pick).filter((v) => v !== null && v !== undefined);
    const xs = numbers((s) => [s.x[0], s.x[s.x.length - 1]]);
    const x0 = Math.min(0, ...xs), x1 = Math.max(...xs);
    let y0 = Infinity, y1 = -Infinity;
    for (const s of all) for (const list of [s.m, s.lo || [], s.hi || []]) for (const v of list) {
      if (v !== null) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
    }
    if (chart.bounds || figure.dataset.chart.startsWith("scope")) { y0 = Math.min(y0, 0); y1 = Math.max(y1, 0.2); }
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.04;
    y0 = shown(y0 - (y0 < 0 || y0 === y1 ? pad : 0)); y1 = shown(y1 + pad);
    const yTicks = ticks(y0, y1, 5);
    const yText = yTicks.map((v) => (Math.abs(v) >= 1000 ? compact(v) : minus(String(+v.toPrecision(4)))));
    const left = 16 + Math.max(...yText.map((t) => t.length)) * 6.6, right = 14, top = 8, bottom = 38;
    const px = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
    const py = (v) => height - bottom - ((shown(v) - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, figure);
    svg.setAttribute("aria-label", `${chart.y} over ${side.x}`);
    yTicks.forEach((v, i) => {
      const y = height - bottom - ((v - y0) / (y1 - y0 || 1)) * (height - top - bottom);
      node("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }, svg);
      node("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, svg).textContent = yText[i];
    });
    const unit = timeUnit(x1 - x0);
    const share = side.kind === "share";
    ticks(x0, x1, width / 95, side.kind === "seconds" ? unit.size : 1).forEach((v) => {
      node("line", { class: "base", x1: px(v), x2: px(v), y1: height - bottom, y2: height - bottom + 4 }, svg);
      const text = share ? Math.round(100 * v) + "\u202f%" : side.kind === "seconds" ? seconds(v, unit) : compact(v);
      node("text", { x: px(v), y: height - bottom + 17, "text-anchor": "middle" }, svg).textContent = text;
    });
    node("line", { class: "base", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }, svg);
    const label = node("text", { class: "label", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, svg);
    label.textContent = `${side.x}  ·  ${raw ? chart.raw : chart.y}`;
    const drawn = [];
    // Curves of runs are drawn above published ones.
    for (const s of [...all].sort((a, b) => (b.published ? 1 : 0) - (a.published ? 1 : 0))) {
      const kind = ["series", s.published && "published", s.unfinished && "unfinished"].filter(Boolean).join(" ");
      const g = node("g", { class: kind }, svg);
      drawn.push([s, g]);
      if (s.hi) {
        const known = s.x.map((_, i) => i).filter((i) => s.hi[i] !== null);
        const up = known.map((i) => `${px(s.x[i]).toFixed(1)},${py(s.hi[i]).toFixed(1)}`);
        const down = known.reverse().map((i) => `${px(s.x[i]).toFixed(1)},${py(s.lo[i]).toFixed(1)}`);
        if (up.length > 1) node("path", { class: "band", d: `M${up.join("L")}L${down.join("L")}Z`, style: `fill:${colour(s)}` }, g);
      }
      const line = s.x.map((x, i) => `${px(x).toFixed(1)},${py(s.m[i]).toFixed(1)}`).join("L");
      node("path", { class: "curve", d: `M${line}`, style: `stroke:${colour(s)}` }, g);
      if (s.x.length === 1) node("circle", { r: 3, cx: px(s.x[0]), cy: py(s.m[0]), style: `fill:${colour(s)}` }, g);
    }
    figure.view = { chart, side, svg, drawn, px, py, shown, unit, left, right, top, bottom, width, height, cursor: node("g", {}, svg) };
    hideCurves(figure);
  }

  /** Hides the curves that are switched off. */
  function hideCurves(figure) {
    for (const [series, g] of figure.view ? figure.view.drawn : []) g.classList.toggle("off", isHidden(series));
  }

  // --- what is under the pointer

  function nearest(list, x) {
    let low = 0, high = list.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
  }

  function point(figure, x) {
    const view = figure.view;
    const visible = view.side.series.filter((s) => !isHidden(s));
    view.cursor.replaceChildren();
    if (!visible.length) return leave(figure);
    // The curve with the point nearest to x sets the position; others are shown if they have a point close to it.
    const grid = visible.map((s) => s.x[nearest(s.x, x)]);
    const at = grid.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
    const reach = (view.side.series.reduce((m, s) => Math.max(m, s.x[s.x.length - 1]), 0) || 1) * 0.03;
    figure.at = at;
    node("line", { class: "guide", x1: view.px(at), x2: view.px(at), y1: view.top, y2: view.height - view.bottom }, view.cursor);
    const rows = [];
    for (const s of visible) {
      const i = nearest(s.x, at);
      if (Math.abs(s.x[i] - at) > reach || s.m[i] === null) continue;
      node("circle", { r: 3.5, cx: view.px(s.x[i]), cy: view.py(s.m[i]), style: `fill:${colour(s)}` }, view.cursor);
      const mean = view.shown(s.m[i]);
      let spread = "";
      if (s.hi && s.hi[i] !== null) {
        spread = view.chart.band.startsWith("±")
          ? `± ${value(view.shown(s.hi[i]) - mean)}`
          : `${value(view.shown(s.lo[i]))} – ${value(view.shown(s.hi[i]))}`;
      }
      const n = s.n === undefined ? "" : Array.isArray(s.n) ? s.n[i] : s.n;
      // Over time no two variants share their points; the nearest one is close enough to need no position.
      const elsewhere = s.x[i] !== at && view.side.kind === "steps" ? position("steps", s.x[i]) : "";
      rows.push({ s, mean, spread, n, elsewhere });
    }
    rows.sort((a, b) => b.mean - a.mean);
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = position(view.side.kind, at, view.unit);
    const table = document.createElement("table");
    for (const row of rows) {
      const tr = table.insertRow();
      const key = document.createElement("span");
      key.className = "key";
      key.style.setProperty("--c", colour(row.s));
      tr.insertCell().append(key, seriesName(row.s));
      tr.insertCell().append(Object.assign(document.createElement("b"), { textContent: value(row.mean) }));
      tr.insertCell().textContent = row.spread;
      const seeds = row.n === "" ? "" : row.n === 1 ? "1 seed" : `${row.n} seeds`;
      tr.insertCell().textContent = [seeds, row.elsewhere && "at " + row.elsewhere].filter(Boolean).join(", ");
    }
    const foot = document.createElement("span");
    foot.className = "soft";
    foot.textContent = rows.some((row) => row.spread) ? `band: ${view.chart.band}` : "";
    tip.append(head, table, foot);
    tip.hidden = false;
    const box = view.svg.getBoundingClientRect();
    const scale = box.width / view.width;
    const x_ = box.left + view.px(at) * scale;
    const width = tip.offsetWidth;
    const side = x_ + width + 24 < root.clientWidth ? x_ + 14 : Math.max(8, x_ - width - 14);
    tip.style.left = `${side + scrollX}px`;
    tip.style.top = `${box.top + scrollY + 12}px`;
  }

  function leave(figure) {
    if (figure.view) figure.view.cursor.replaceChildren();
    tip.hidden = true;
  }

  function watch(figure) {
    figure.tabIndex = 0;
    figure.addEventListener("pointermove", (event) => {
      const view = figure.view;
      if (!view) return;
      const box = view.svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) * view.width) / box.width;
      const [low, high] = [view.px(0), view.px(1)];
      point(figure, (at - low) / (high - low));
    });
    figure.addEventListener("pointerleave", () => leave(figure));
    figure.addEventListener("blur", () => leave(figure));
    figure.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !figure.view) return;
      event.preventDefault();
      const grid = figure.view.side.series.filter((s) => !isHidden(s)).flatMap((s) => s.x);
      const sorted = [...new Set(grid)].sort((a, b) => a - b);
      if (!sorted.length) return;
      const now = figure.at === undefined ? (step > 0 ? -1 : sorted.length) : nearest(sorted, figure.at);
      point(figure, sorted[Math.min(Math.max(now + step, 0), sorted.length - 1)]);
    });
  }

  const figures = [...document.querySelectorAll("[data-chart]")];
  const redraw = () => figures.forEach(draw);
  figures.forEach(watch);

  // --- what is shown

  const publishedChips = [...document.querySelectorAll("[data-toggle-published]")];
  const flip = (set, key) => set.delete(key) || !set.add(key);
  const showChosen = () => {
    for (const chip of publishedChips) {
      chip.setAttribute("aria-pressed", String(!state.off.has(chip.dataset.togglePublished)));
      chip.disabled = !state.published;
    }
    figures.forEach(hideCurves);
  };
  for (const chip of document.querySelectorAll("[data-toggle]")) {
    chip.addEventListener("click", () => {
      const g = +chip.dataset.toggle;
      const shown = flip(state.hidden, g);
      chip.setAttribute("aria-pressed", String(shown));
      for (const element of document.querySelectorAll(`[data-g="${g}"]`)) element.classList.toggle("off", !shown);
      // The published curve is hidden with the last group of its variant, and shown again with the first.
      const variant = data.variants[g];
      const left = data.variants.filter((v, i) => v === variant && !state.hidden.has(i)).length;
      if (!shown && left === 0) state.off.add(variant);
      if (shown && left === 1) state.off.delete(variant);
      showChosen();
    });
  }
  for (const chip of publishedChips) {
    chip.addEventListener("click", () => { flip(state.off, chip.dataset.togglePublished); showChosen(); });
  }
  const publishedChip = document.querySelector("[data-published]");
  if (publishedChip) publishedChip.addEventListener("click", () => {
    state.published = !state.published;
    publishedChip.setAttribute("aria-pressed", String(state.published));
    showChosen();
  });
  for (const group of document.querySelectorAll("[data-switch]")) {
    const name = group.dataset.switch;
    const buttons = [...group.querySelectorAll("button")];
    const show = () => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.value === state[name])));
    buttons.forEach((b) => b.addEventListener("click", () => { state[name] = b.value; show(); redraw(); }));
    if (name === "x" && !Object.values(data.charts).some((c) => c.wall)) group.style.display = "none";
    if (name === "y" && !Object.values(data.charts).some((c) => c.bounds)) group.style.display = "none";
    show();
  }
  const tabs = [...document.querySelectorAll("[data-tab]")];
  const openTab = (chosen) => {
    tabs.forEach((tab) => tab.setAttribute("aria-selected", String(tab === chosen)));
    document.querySelectorAll("[data-panel]").forEach((panel) => { panel.hidden = panel.dataset.panel !== chosen.dataset.tab; });
  };
  tabs.forEach((tab) => tab.addEventListener("click", () => openTab(tab)));
  if (tabs.length) openTab(tabs[0]);
  document.querySelector(".theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // --- tables

  for (const table of document.querySelectorAll("table:not(.plain)")) {
    table.querySelectorAll("thead th").forEach((th, column) => {
      th.tabIndex = 0;
      const sort = () => {
        const up = th.getAttribute("aria-sort") === "descending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        th.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => {
          const cell = row.cells[column];
          const text = cell.dataset.sort ?? cell.textContent.trim();
          return text !== "" && isFinite(text) ? +text : text.toLowerCase();
        };
        const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1);
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (up ? 1 : -1) * order(key(a), key(b)));
        table.tBodies[0].append(...rows);
      };
      th.addEventListener("click", sort);
      th.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }

  // A table that continues to the right fades out at its edge.
  const boxes = [...document.querySelectorAll(".scroll")];
  const fade = (box) => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  boxes.forEach((box) => box.addEventListener("scroll", () => fade(box), { passive: true }));

  const lay = () => { redraw(); boxes.forEach(fade); };
  lay();
  let pending;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(lay, 120); });
  for (const [event, paper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => { state.paper = paper; redraw(); });
  }
  root.dataset.ready = "true";
})();
