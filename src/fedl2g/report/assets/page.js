"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");
  const hidden = new Set();
  const charts = [];

  // All text goes through textContent: names of runs are untrusted, never markup.
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "style") Object.assign(node.style, value);
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  function draw(parent, tag, attributes = {}, style = {}, text = null) {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    Object.assign(node.style, style);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  }

  // The same method has the same colour in every report.
  const taken = new Set();
  const colours = new Map();
  for (const group of data.groups) {
    let index = group.colour % 12;
    for (let tries = 0; tries < 12 && (index < 0 || taken.has(index)); tries++) index = (index + 1) % 12;
    taken.add(index);
    colours.set(group.label, `var(--c${index})`);
  }
  const colour = (label) => colours.get(label);
  const shown = () => data.groups.filter((group) => !hidden.has(group.label));

  const percent = (value) => `${(100 * value).toFixed(2)} %`;
  function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    if (size >= 100) return value.toFixed(0);
    if (size >= 10) return value.toFixed(1);
    if (size >= 0.1) return value.toFixed(2);
    return Number(value.toPrecision(2)).toString();
  }
  const mark = (value) => Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 });
  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const raw = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw - 1e-12) * power;
    const result = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) result.push(Number((at * step).toPrecision(12)));
    return result;
  }
  function logTicks(low, high) {
    const result = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      const value = 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) result.push(value);
    }
    return result;
  }

  function showTip(event, title, rows) {
    tip.replaceChildren(make("b", {}, title));
    for (const [tint, name, value] of rows) {
      const line = make("div", {}, tint ? make("i", { style: { background: tint } }) : null, name);
      if (value !== undefined) line.append(make("span", {}, value));
      tip.append(line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    let left = event.clientX + 16, top = event.clientY + 14;
    if (left + box.width > innerWidth - 8) left = Math.max(8, event.clientX - box.width - 16);
    if (top + box.height > innerHeight - 8) top = Math.max(8, event.clientY - box.height - 14);
    tip.style.left = `${left}px`;
    tip.style.top = `${top}px`;
  }
  const hideTip = () => { tip.hidden = true; };
  addEventListener("scroll", hideTip, { passive: true });

  function card(parent, title, caption, { id }) {
    const tools = make("div", { class: "tools" });
    const holder = make("div");
    const figure = make("figure", { class: "card", id }, make("h3", {}, title), make("figcaption", {}, caption), tools, holder);
    document.getElementById(parent).append(figure);
    return { figure, tools, holder };
  }
  function register(holder, paint) {
    let last = 0;
    const repaint = () => {
      const width = Math.max(260, Math.round(holder.clientWidth || 520));
      last = width;
      holder.replaceChildren();
      paint(width);
    };
    charts.push(repaint);
    // In the next frame: painting resizes elements, which must not happen inside the resize observer.
    new ResizeObserver(() => requestAnimationFrame(() => { if (Math.abs((holder.clientWidth || last) - last) > 2) repaint(); })).observe(holder);
    repaint();
  }
  function canvas(holder, width, height, label) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    holder.append(svg);
    return svg;
  }
  const place = (svg, event, width) => {
    const box = svg.getBoundingClientRect();
    return (event.clientX - box.left) * (width / box.width);
  };

  // Curves with a band over seeds; drag to zoom, double click to see all again.
  function lineChart(parent, { id, title, caption, xLabel, series, format, zero = false, logX = false, xText = (x) => `${xLabel} ${x}` }) {
    const { tools, holder } = card(parent, title, caption, { id });
    let range = null, log = logX;
    const reset = make("button", { type: "button", onclick: () => { range = null; repaint(); } }, "show all");
    reset.hidden = true;
    if (logX) {
      const box = make("input", { type: "checkbox", onchange: () => { log = box.checked; range = null; repaint(); } });
      box.checked = true;
      tools.append(make("label", {}, box, "logarithmic"));
    }
    tools.append(reset);
    const repaint = () => { holder.replaceChildren(); paint(Math.max(260, holder.clientWidth || 520)); };
    function paint(width) {
      reset.hidden = range === null;
      const height = Math.round(Math.min(340, Math.max(230, width * 0.58)));
      const svg = canvas(holder, width, height, `${title}. ${caption}`);
      const margin = { left: 46, right: 12, top: 8, bottom: 34 };
      const lines = series().filter((line) => line.x.length && !hidden.has(line.label))
        .map((line) => { const keep = line.x.map((x, i) => i).filter((i) => !log || line.x[i] > 0);
          return { ...line, x: keep.map((i) => line.x[i]), y: keep.map((i) => line.y[i]), low: line.low && keep.map((i) => line.low[i]), high: line.high && keep.map((i) => line.high[i]) }; })
        .filter((line) => line.x.length);
      if (!lines.length) {
        draw(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, {}, "nothing to show: enable a method above");
        return;
      }
      const warp = log ? Math.log10 : (v) => v;
      const all = [Math.min(...lines.map((l) => l.x[0])), Math.max(...lines.map((l) => l.x[l.x.length - 1]))];
      let [x0, x1] = range || all;
      if (x1 === x0) { x0 -= log ? x0 / 2 : 1; x1 += 1; }
      let y0 = Infinity, y1 = -Infinity;
      for (const line of lines) line.x.forEach((x, i) => {
        if (x < x0 || x > x1) return;
        y0 = Math.min(y0, line.low ? line.low[i] : line.y[i]);
        y1 = Math.max(y1, line.high ? line.high[i] : line.y[i]);
      });
      if (!Number.isFinite(y0)) { y0 = 0; y1 = 1; }
      if (zero) { y0 = Math.min(y0, 0); y1 = Math.max(y1, 0); }
      const room = (y1 - y0 || 1) * 0.06;
      y0 -= room; y1 += room;
      const X = (x) => margin.left + (warp(x) - warp(x0)) / (warp(x1) - warp(x0)) * (width - margin.left - margin.right);
      const Y = (y) => height - margin.bottom - (y - y0) / (y1 - y0) * (height - margin.top - margin.bottom);
      for (const tick of ticks(y0, y1, 5)) {
        draw(svg, "line", { x1: margin.left, x2: width - margin.right, y1: Y(tick), y2: Y(tick), class: zero && tick === 0 ? "zero" : "gridline" });
        draw(svg, "text", { x: margin.left - 6, y: Y(tick) + 4, "text-anchor": "end" }, {}, format.axis(tick));
      }
      const marks = log ? logTicks(x0, x1) : ticks(x0, x1, width < 420 ? 4 : 7);
      const whole = marks.filter(Number.isInteger);
      for (const tick of xLabel.startsWith("round") && whole.length ? whole : marks) {
        draw(svg, "text", { x: X(tick), y: height - margin.bottom + 16, "text-anchor": "middle" }, {}, mark(tick));
      }
      draw(svg, "line", { x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom, class: "axis" });
      draw(svg, "text", { x: (margin.left + width - margin.right) / 2, y: height - 3, "text-anchor": "middle" }, {}, xLabel);
      const name = `clip-${id}`;
      const clip = draw(draw(svg, "defs"), "clipPath", { id: name });
      draw(clip, "rect", { x: margin.left, y: 0, width: width - margin.left - margin.right, height: height - margin.bottom });
      const layer = draw(svg, "g", { "clip-path": `url(#${name})` });
      for (const line of lines) {
        if (line.low && line.low.some((low, i) => low !== line.high[i])) {
          const outline = line.x.map((x, i) => `${X(x).toFixed(1)},${Y(line.high[i]).toFixed(1)}`)
            .concat(line.x.map((x, i) => `${X(x).toFixed(1)},${Y(line.low[i]).toFixed(1)}`).reverse());
          draw(layer, "polygon", { points: outline.join(" "), class: "band" }, { fill: colour(line.label) });
        }
      }
      for (const line of lines) {
        draw(layer, "polyline", { points: line.x.map((x, i) => `${X(x).toFixed(1)},${Y(line.y[i]).toFixed(1)}`).join(" "), class: "curve", "data-label": line.label }, { stroke: colour(line.label) });
        if (line.x.length === 1) draw(layer, "circle", { cx: X(line.x[0]), cy: Y(line.y[0]), r: 3.5 }, { fill: colour(line.label) });
      }
      const cross = draw(svg, "line", { y1: margin.top, y2: height - margin.bottom, class: "cross", visibility: "hidden" });
      const box = draw(svg, "rect", { y: margin.top, height: height - margin.top - margin.bottom, class: "zoombox", visibility: "hidden" });
      const dots = lines.map((line) => draw(svg, "circle", { r: 3.5, visibility: "hidden" }, { fill: colour(line.label) }));
      let from = null;
      const inside = (event) => Math.min(width - margin.right, Math.max(margin.left, place(svg, event, width)));
      const back = (px) => { const part = (px - margin.left) / (width - margin.left - margin.right); const at = warp(x0) + part * (warp(x1) - warp(x0)); return log ? 10 ** at : at; };
      svg.addEventListener("pointermove", (event) => {
        const px = inside(event), x = back(px);
        if (from !== null) { box.setAttribute("x", Math.min(from, px)); box.setAttribute("width", Math.abs(px - from)); box.setAttribute("visibility", "visible"); }
        const rows = [];
        let nearest = null;
        lines.forEach((line, n) => {
          let best = 0;
          line.x.forEach((at, i) => { if (Math.abs(warp(at) - warp(x)) < Math.abs(warp(line.x[best]) - warp(x))) best = i; });
          const at = line.x[best];
          if (nearest === null || Math.abs(warp(at) - warp(x)) < Math.abs(warp(nearest) - warp(x))) nearest = at;
          dots[n].setAttribute("cx", X(at)); dots[n].setAttribute("cy", Y(line.y[best]));
          dots[n].setAttribute("visibility", at >= x0 && at <= x1 ? "visible" : "hidden");
          rows.push([line.y[best], colour(line.label), line.label, format.value(line.y[best])]);
        });
        cross.setAttribute("x1", X(nearest)); cross.setAttribute("x2", X(nearest)); cross.setAttribute("visibility", "visible");
        rows.sort((a, b) => b[0] - a[0]);
        showTip(event, xText(nearest), rows.map((row) => row.slice(1)));
      });
      const leave = () => { hideTip(); for (const node of [cross, box, ...dots]) node.setAttribute("visibility", "hidden"); from = null; };
      svg.addEventListener("pointerleave", leave);
      svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) from = inside(event); });
      svg.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const to = inside(event), start = from;
        from = null;
        if (Math.abs(to - start) > 12) { range = [back(Math.min(start, to)), back(Math.max(start, to))]; leave(); repaint(); }
      });
      svg.addEventListener("dblclick", () => { range = null; leave(); repaint(); });
    }
    register(holder, paint);
  }

  // One row for each method, with one or more bars.
  function barChart(parent, { id, title, caption, bars, format, log = false, logSwitch = false, keys = null }) {
    const { tools, holder } = card(parent, title, caption, { id });
    if (logSwitch) {
      const box = make("input", { type: "checkbox", onchange: () => { log = box.checked; holder.replaceChildren(); paint(Math.max(260, holder.clientWidth)); } });
      box.checked = log;
      tools.append(make("label", {}, box, "logarithmic"));
    }
    if (keys) tools.append(make("span", {}, keys));
    function paint(width) {
      const rows = shown().map((group) => ({ group, parts: bars(group) })).filter((row) => row.parts.length);
      const thick = 9, gap = 3;
      const heights = rows.map((row) => 20 + row.parts.length * (thick + gap) + 8);
      const height = heights.reduce((a, b) => a + b, 0) + 26;
      const svg = canvas(holder, width, height, `${title}. ${caption}`);
      const values = rows.flatMap((row) => row.parts.map((part) => part.value)).filter((v) => v > 0);
      if (!values.length) {
        draw(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, {}, rows.length ? "zero for all" : "nothing to show: enable a method above");
        return;
      }
      const right = 86, high = Math.max(...values), low = 10 ** Math.floor(Math.log10(Math.min(...values)) - 0.001);
      const X = (v) => v <= 0 ? 0 : (log ? (Math.log10(v) - Math.log10(low)) / (Math.log10(high) - Math.log10(low) || 1) : v / high) * (width - right);
      for (const tick of log ? logTicks(low, high) : ticks(0, high, 4)) {
        draw(svg, "line", { x1: X(tick) + 0.5, x2: X(tick) + 0.5, y1: 4, y2: height - 20, class: "gridline" });
        draw(svg, "text", { x: Math.max(X(tick), 1), y: height - 6, "text-anchor": X(tick) < 8 ? "start" : "middle" }, {}, mark(tick));
      }
      let y = 0;
      rows.forEach((row, n) => {
        draw(svg, "text", { x: 0, y: y + 14, class: "strong" }, {}, row.group.label);
        row.parts.forEach((part, k) => {
          const top = y + 20 + k * (thick + gap);
          const bar = draw(svg, "rect", { x: 0, y: top, width: Math.max(X(part.value), part.value > 0 ? 2 : 0), height: thick, rx: 2.5 }, { fill: colour(row.group.label), opacity: part.faint ? 0.45 : 1 });
          draw(svg, "text", { x: X(part.value) + 6, y: top + 8.5 }, {}, `${format(part.value)} ${part.name}`);
          bar.addEventListener("pointermove", (event) => showTip(event, row.group.label, [[null, part.name, format(part.value)]]));
          bar.addEventListener("pointerleave", hideTip);
        });
        y += heights[n];
      });
    }
    register(holder, paint);
  }

  function spreadChart() {
    if (!data.groups.some((group) => group.spread.length)) return;
    const { holder } = card("figures", "Accuracy of each client", "A dot is a client's accuracy on its own test set in the best round (all seeds); the box holds the middle half, the line is the median.", { id: "spread" });
    register(holder, (width) => {
      const rows = shown().filter((group) => group.spread.length);
      const each = 46, height = rows.length * each + 30;
      const svg = canvas(holder, width, height, "Accuracy of each client, a row for each method");
      const left = 4, right = 20;
      const values = rows.flatMap((g) => g.spread.flatMap((s) => s.clients.map((c) => c[1])));
      const low = Math.max(0, Math.min(...values, 1) - 0.03);
      const X = (v) => left + (v - low) / (1 - low) * (width - left - right);
      for (const tick of ticks(low, 1, 5)) {
        draw(svg, "line", { x1: X(tick), x2: X(tick), y1: 4, y2: height - 22, class: "gridline" });
        draw(svg, "text", { x: X(tick), y: height - 7, "text-anchor": X(tick) < 16 ? "start" : "middle" }, {}, `${(100 * tick).toFixed(0)} %`);
      }
      rows.forEach((group, n) => {
        const y = n * each;
        draw(svg, "text", { x: left, y: y + 14, class: "strong" }, {}, group.label);
        const points = group.spread.flatMap((s) => s.clients.map(([client, value]) => ({ client, value, seed: s.seed, round: s.round })));
        const sorted = points.map((p) => p.value).sort((a, b) => a - b);
        const at = (q) => { const k = q * (sorted.length - 1), i = Math.floor(k); return sorted[i] + (k - i) * ((sorted[i + 1] ?? sorted[i]) - sorted[i]); };
        draw(svg, "rect", { x: X(at(0.25)), y: y + 20, width: Math.max(1, X(at(0.75)) - X(at(0.25))), height: 20, rx: 3 }, { fill: colour(group.label), opacity: 0.16 });
        draw(svg, "line", { x1: X(at(0.5)), x2: X(at(0.5)), y1: y + 18, y2: y + 42 }, { stroke: colour(group.label), strokeWidth: "2px" });
        points.forEach((p) => {
          const dot = draw(svg, "circle", { cx: X(p.value), cy: y + 30 + ((p.client * 7 + p.seed * 3) % 11 - 5) * 1.6, r: 3.2 }, { fill: colour(group.label), opacity: 0.75 });
          dot.addEventListener("pointermove", (event) => showTip(event, `${group.label}, client ${p.client}`, [[null, "accuracy", percent(p.value)], [null, "seed", String(p.seed)], [null, "best round", String(p.round)]]));
          dot.addEventListener("pointerleave", hideTip);
        });
      });
    });
  }

  function partitionChart() {
    if (!data.partitions.length) return;
    const { tools, holder } = card("figures", "Who holds what", "Samples of each class on each client, train and test together; a circle's area is their number.", { id: "partition" });
    let chosen = 0;
    if (data.partitions.length > 1) {
      const select = make("select", { "aria-label": "partition", onchange: () => { chosen = Number(select.value); holder.replaceChildren(); paint(Math.max(260, holder.clientWidth)); } });
      data.partitions.forEach((p, n) => select.append(make("option", { value: n }, p.name)));
      tools.append(select);
    } else tools.append(make("span", {}, data.partitions[0].name));
    function paint(width) {
      const partition = data.partitions[chosen];
      const clients = partition.sizes.length;
      if (!partition.counts) {
        const height = 200, svg = canvas(holder, width, height, "Samples of each client");
        const high = Math.max(...partition.sizes.map(([a, b]) => a + b)), step = (width - 20) / clients;
        partition.sizes.forEach(([train, test], n) => {
          const bar = draw(svg, "rect", { x: 10 + n * step, y: 170 - 150 * (train + test) / high, width: Math.max(1, step - 2), height: 150 * (train + test) / high, rx: 2 }, { fill: "var(--accent)" });
          bar.addEventListener("pointermove", (event) => showTip(event, `client ${n}`, [[null, "train", String(train)], [null, "test", String(test)]]));
          bar.addEventListener("pointerleave", hideTip);
        });
        draw(svg, "text", { x: width / 2, y: 190, "text-anchor": "middle" }, {}, "client (the dataset is not on this machine: classes are not known)");
        return;
      }
      const classes = partition.classes;
      const left = 34, bottom = 34, right = 8;
      const height = Math.round(Math.min(560, Math.max(220, classes * 22 + bottom)));
      const svg = canvas(holder, width, height, "Samples of each class on each client");
      const sx = (width - left - right) / clients, sy = (height - bottom - 8) / classes;
      const X = (c) => left + (c + 0.5) * sx, Y = (k) => 8 + (k + 0.5) * sy;
      const high = Math.max(...partition.counts.map((c) => c[2]));
      const radius = Math.min(sx * 0.52, Math.max(sy * 0.52, 5));
      for (const k of ticks(0, classes - 1, Math.min(10, classes)).filter(Number.isInteger)) {
        draw(svg, "line", { x1: left, x2: width - right, y1: Y(k), y2: Y(k), class: "gridline" });
        draw(svg, "text", { x: left - 6, y: Y(k) + 4, "text-anchor": "end" }, {}, String(k));
      }
      for (const c of ticks(0, clients - 1, width < 420 ? 5 : 10).filter(Number.isInteger)) {
        draw(svg, "text", { x: X(c), y: height - bottom + 16, "text-anchor": "middle" }, {}, String(c));
      }
      draw(svg, "text", { x: left + (width - left - right) / 2, y: height - 4, "text-anchor": "middle" }, {}, "client");
      draw(svg, "text", { x: 10, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 10 ${(height - bottom) / 2})` }, {}, "class");
      for (const [client, label, count] of partition.counts) {
        const circle = draw(svg, "circle", { cx: X(client), cy: Y(label), r: Math.max(0.8, radius * Math.sqrt(count / high)) }, { fill: "var(--accent)", opacity: 0.75 });
        const [train, test] = partition.sizes[client];
        circle.addEventListener("pointermove", (event) => showTip(event, `client ${client}`, [[null, `class ${partition.class_names[label]}`, `${count} samples`], [null, "its train / test set", `${train} / ${test}`]]));
        circle.addEventListener("pointerleave", hideTip);
      }
    }
    register(holder, paint);
  }

  function embeddingChart(embedding, number) {
    const what = Object.fromEntries(embedding.kinds.map(([kind, name]) => [kind, name]));
    const signs = { dot: "·", ring: "○", diamond: "◆" };
    const symbols = Object.fromEntries(embedding.kinds.map(([kind, , form]) => [kind, signs[form]]));
    const kinds = embedding.kinds.map(([kind]) => kind);
    const { tools, holder } = card("figures", `t-SNE: ${embedding.label}`, `Colour is the class. Round ${embedding.round}, seed ${embedding.seed}.`, { id: `embedding-${number}` });
    const off = new Set();
    for (const kind of kinds.slice().reverse()) {
      const box = make("input", { type: "checkbox", onchange: () => { box.checked ? off.delete(kind) : off.add(kind); holder.replaceChildren(); paint(Math.max(260, holder.clientWidth)); } });
      box.checked = true;
      tools.append(make("label", {}, box, `${symbols[kind]} ${what[kind]}`));
    }
    const tint = (label) => { const n = embedding.classes.indexOf(label); return `hsl(${Math.round(360 * n / embedding.classes.length)} 70% var(--shade))`; };
    const diamond = (x, y, r) => `${x},${y - r} ${x + r},${y} ${x},${y + r} ${x - r},${y}`;
    function paint(width) {
      const height = Math.round(Math.min(460, width * 0.8)), pad = 14;
      const svg = canvas(holder, width, height, `t-SNE of ${embedding.label}`);
      const xs = embedding.points.map((p) => p[0]), ys = embedding.points.map((p) => p[1]);
      const x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys);
      const X = (v) => pad + (v - x0) / (x1 - x0 || 1) * (width - 2 * pad), Y = (v) => pad + (v - y0) / (y1 - y0 || 1) * (height - 2 * pad);
      for (const kind of kinds) {
        if (off.has(kind)) continue;
        for (const [x, y, of, label, client] of embedding.points) {
          if (of !== kind) continue;
          const node = kind === "guide" ? draw(svg, "polygon", { points: diamond(X(x), Y(y), 8) }, { fill: tint(label), stroke: "var(--ink)", strokeWidth: "1px" })
            : kind === "prototype" ? draw(svg, "circle", { cx: X(x), cy: Y(y), r: 6 }, { fill: tint(label), stroke: "var(--ink)", strokeWidth: "1px" })
            : draw(svg, "circle", { cx: X(x), cy: Y(y), r: 2.3 }, { fill: tint(label), opacity: 0.55 });
          node.addEventListener("pointermove", (event) => showTip(event, `class ${embedding.class_names[label]}`, [[tint(label), what[kind]]].concat(client === null ? [] : [[null, `client ${client}`]])));
          node.addEventListener("pointerleave", hideTip);
        }
      }
    }
    register(holder, paint);
  }

  function legend() {
    const nav = document.getElementById("legend");
    const update = () => { for (const chip of nav.querySelectorAll("[data-label]")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.label))); for (const repaint of charts) repaint(); };
    for (const group of data.groups) {
      nav.append(make("button", {
        type: "button", class: "chip", "data-label": group.label, "aria-pressed": "true", title: "click: show or hide; double click: only this one",
        onclick: () => { hidden.has(group.label) ? hidden.delete(group.label) : hidden.add(group.label); update(); },
        ondblclick: () => { hidden.clear(); for (const other of data.groups) if (other !== group) hidden.add(other.label); update(); },
      }, make("i", { style: { background: colour(group.label) } }), group.label));
    }
    if (data.groups.length > 2) nav.append(make("button", { type: "button", class: "chip", onclick: () => { hidden.clear(); update(); } }, "show all"));
  }

  function sortableTable() {
    const table = document.getElementById("table"), body = table.tBodies[0];
    [...body.rows].forEach((row, n) => { row.cells[0].prepend(make("i", { style: { background: colour(data.groups[n].label) } })); });
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.dataset.sortable = "";
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => { const text = row.cells[column].textContent.trim(), value = parseFloat(text); return column === 0 ? text : Number.isNaN(value) ? -Infinity : value; };
        const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
        body.append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    });
  }

  function plainTable(head, rows) {
    return make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, n) => make(n ? "td" : "th", n ? {} : { scope: "row" }, String(cell ?? "–"))))))));
  }

  function whatWasRun() {
    const place = document.getElementById("settings");
    const differing = Object.entries(data.settings.differing);
    if (differing.length) place.append(make("h3", {}, "Settings that differ"), plainTable(["setting", ...data.groups.map((g) => g.label)], differing.map(([name, values]) => [name, ...values])));
    const seeds = [...new Set(data.groups.flatMap((g) => g.runs.map((r) => r.seed)))].sort((a, b) => a - b);
    place.append(make("h3", {}, "Settings of all runs"), plainTable(["setting", "value"], [["seeds", seeds.join(", ")], ...Object.entries(data.settings.common)]));
    const guaranteed = data.groups.flatMap((g) => g.runs.filter((r) => "epsilon" in r.privacy).map((r) => [g.label, r.seed, ...["epsilon", "delta", "noise_multiplier"].map((name) => Number(r.privacy[name].toPrecision(3)))]));
    if (guaranteed.length) place.append(make("h3", {}, "Differential privacy of uploads, by client"), plainTable(["method", "seed", "epsilon spent", "delta", "noise multiplier"], guaranteed));
    place.append(make("details", {}, make("summary", {}, `Versions and machines (${data.environments.length})`),
      ...data.environments.map((e) => plainTable(["", `${e.runs} runs`], Object.entries(e.values)))));
    place.append(make("details", {}, make("summary", {}, "Run directories"),
      plainTable(["method", "seed", "rounds", "status", "refused replies", "missing replies", "directory"], data.groups.flatMap((g) => g.runs.map((r) => [g.label, r.seed, r.rounds, r.diverged === null ? r.status : `diverged in round ${r.diverged}`, r.refused, r.missing, r.path])))));
  }

  document.getElementById("made").textContent = `${data.made.runs} runs · fedl2g ${data.made.fedl2g} · report made ${data.made.at}`;
  for (const note of data.notes) document.getElementById("notes").append(make("li", {}, note));
  legend();
  sortableTable();
  const accuracy = { axis: (v) => `${Number((100 * v).toFixed(1))} %`, value: percent };
  const plain = { axis: mark, value: (v) => v.toFixed(4) };
  const many = data.groups.some((g) => g.runs.length > 1) ? " The band spans the seeds." : "";
  lineChart("figures", { id: "accuracy", title: "Test accuracy", caption: `Correct predictions over all clients' test samples.${many} Drag to zoom.`, xLabel: "round", series: () => data.groups.map((g) => ({ label: g.label, ...g.accuracy })), format: accuracy });
  if (data.groups.some((g) => g.loss.x.length)) lineChart("figures", { id: "loss", title: "Original local loss", caption: `Cross entropy alone on the clients' training batches, mean over clients.${many}`, xLabel: "round", series: () => data.groups.map((g) => ({ label: g.label, ...g.loss })), format: plain });
  const relative = Object.entries(data.increase.relative);
  if (relative.length) lineChart("figures", { id: "loss-increase", title: "Loss increase against local training", caption: "Original local loss minus that of local training after as many rounds of training (warm-up rounds left out). Above zero, guidance works against the client's own task.", xLabel: "round of training", series: () => relative.map(([label, line]) => ({ label, ...line })), format: plain, zero: true });
  if (Object.keys(data.increase.rise).length) barChart("figures", { id: "loss-rise", title: "Loss increase during training", caption: "The largest climb of the original local loss above its own earlier minimum, mean over seeds.", bars: (g) => { const rise = data.increase.rise[g.label]; return rise && rise.mean !== null ? [{ name: "", value: rise.mean }] : []; }, format: (v) => v.toFixed(4) });
  if (data.groups.some((g) => g.bytes.x[g.bytes.x.length - 1] > 0)) {
    lineChart("figures", { id: "bytes", title: "Accuracy against megabytes sent", caption: "Up and down, all clients together, first seed.", xLabel: "MB", series: () => data.groups.map((g) => ({ label: g.label, ...g.bytes })), format: accuracy, logX: true, xText: (x) => `${short(x)} MB` });
    barChart("figures", { id: "communication", title: "Communication per round", caption: "Counted from the payloads that crossed: MB of all participants together.", bars: (g) => [{ name: "up", value: g.cost.up_mb ?? 0 }, { name: "down", value: g.cost.down_mb ?? 0, faint: true }], format: short, log: true, logSwitch: true });
    if (data.byte_notes.length) document.getElementById("communication").append(make("div", { class: "why" }, make("b", {}, "About these megabytes"), ...data.byte_notes.map((note) => make("p", {}, note))));
  }
  barChart("figures", { id: "computation", title: "Computation per round", caption: "Seconds of all participants together on the machine of the run, and of the server.", bars: (g) => [{ name: "s clients", value: g.cost.client_s ?? 0 }].concat(g.cost.warmup_client_s === null ? [] : [{ name: "s clients, warm-up round", value: g.cost.warmup_client_s, faint: true }], [{ name: "s server", value: g.cost.server_s ?? 0, faint: true }]), format: short, logSwitch: true });
  spreadChart();
  partitionChart();
  data.embeddings.forEach(embeddingChart);
  const cards = document.querySelectorAll("#figures > .card");
  if (cards.length % 2) cards[cards.length - 1].classList.add("wide");
  whatWasRun();
  document.body.dataset.ready = "yes";
})();
