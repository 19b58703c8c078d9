"use strict";
// Draws the charts of the page, and what its reader can do with them: switch methods off, zoom, sort, choose.
(() => {
  const hidden = new Set();
  const zooms = new Map(); // name of a zoom -> [from, to]
  const chosen = new Map(); // card -> the chart that the reader chose
  const views = new Map(); // card -> its view
  const drawn = new Map(); // card -> the chart that it shows, as text
  let methods = [], charts = {};
  let drawing = 0;

  // All text goes through textContent: names of runs are untrusted, never markup.
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  function line(method) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg"), stroke = document.createElementNS(space, "line");
    for (const [name, value] of Object.entries({ width: 26, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, value);
    const look = { x1: 1, x2: 25, y1: 4, y2: 4, stroke: method.colour, "stroke-width": 2.4, "stroke-dasharray": method.dash.join(" ") };
    for (const [name, value] of Object.entries(look)) stroke.setAttribute(name, value);
    svg.append(stroke);
    return svg;
  }

  // The legend of all charts.
  function legend() {
    const place = document.getElementById("legend");
    const chip = (method) => make("button", { type: "button", class: "chip", "data-label": method.label,
      "aria-pressed": String(!hidden.has(method.label)), title: "show or hide in all charts", onclick: () => toggle([method.label]) }, line(method), method.label);
    place.replaceChildren(...methods.map(chip));
    if (methods.length > 2) {
      place.append(make("button", { type: "button", class: "chip plain", onclick: () => show([]) }, "all"));
      place.append(make("button", { type: "button", class: "chip plain", onclick: () => show(methods.map((m) => m.label)) }, "none"));
    }
    place.hidden = methods.length < 2;
    for (const row of document.querySelectorAll("#table tbody tr")) {
      const method = methods.find((m) => m.label === row.dataset.label);
      if (method) row.querySelector("th i").style.background = method.colour;
    }
  }
  function toggle(labels) {
    for (const label of labels) hidden.delete(label) || hidden.add(label);
    show([...hidden]);
  }
  function show(labels) {
    hidden.clear();
    for (const label of labels) hidden.add(label);
    for (const chip of document.querySelectorAll(".chip[data-label]")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.label)));
    for (const view of views.values()) set(view, "hidden", [...hidden]);
  }
  function set(view, name, value) {
    if (name in view.getState({ signals: (n) => n === name, data: () => false }).signals) view.signal(name, value).runAsync();
  }

  // Charts with the same name of a zoom share the range; one with fewer than two points in it shows everything.
  function points(spec, range) {
    const rows = spec.data.values || spec.datasets[spec.data.name];
    return new Set(rows.flatMap((row) => row.x).filter((x) => x >= range[0] && x <= range[1])).size;
  }
  function shown(id) { return charts[id][Math.min(chosen.get(id) || 0, charts[id].length - 1)]; }
  function zoom(name, range) {
    if (range) zooms.set(name, range); else zooms.delete(name);
    for (const figure of document.querySelectorAll(".card[data-zoom]")) {
      if (figure.dataset.zoom !== name || !views.has(figure.id)) continue;
      set(views.get(figure.id), "zoom", range && points(shown(figure.id).spec, range) > 1 ? range : null);
      tools(figure);
    }
  }
  function followZoom(figure, view) {
    const name = figure.dataset.zoom;
    if (!name) return;
    const chart = figure.querySelector(".chart");
    chart.onpointerup = () => setTimeout(() => {
      const range = view.signal("brush").at;
      const pixels = view.signal("brush_x");
      if (!range || Math.abs(pixels[1] - pixels[0]) < 8) return;
      view.signal("brush_x", [0, 0]).runAsync();
      const ordered = [Math.min(...range), Math.max(...range)];
      if (points(shown(figure.id).spec, ordered) > 1) zoom(name, ordered);
    });
    chart.ondblclick = () => zoom(name, null);
    if (zooms.has(name)) zoom(name, zooms.get(name));
  }

  function tools(figure) {
    const place = figure.querySelector(".tools");
    place.replaceChildren();
    if (charts[figure.id].length > 1) {
      const choice = make("select", { "aria-label": "which chart", onchange: () => { chosen.set(figure.id, choice.selectedIndex); choice.blur(); draw(figure); } },
        ...charts[figure.id].map((chart) => make("option", {}, chart.name)));
      choice.selectedIndex = charts[figure.id].indexOf(shown(figure.id));
      place.append(choice);
    } else if (shown(figure.id).name) place.append(shown(figure.id).name);
    if (zooms.has(figure.dataset.zoom)) place.append(make("button", { type: "button", onclick: () => zoom(figure.dataset.zoom, null) }, "show all"));
  }

  // A chart that is drawn again takes the place of the old one when it is ready, so that a live page does not flicker.
  async function draw(figure) {
    tools(figure);
    const chart = figure.querySelector(".chart"), fresh = make("div"), wanted = shown(figure.id);
    chart.append(fresh);
    // `ast`: expressions are interpreted, since the page's policy forbids compiling text.
    const found = await vegaEmbed(fresh, wanted.spec, { mode: "vega-lite", actions: false, renderer: "svg", ast: true, logLevel: 1, tooltip: { theme: "page" } });
    for (const old of [...chart.children]) if (old !== fresh) old.remove();
    const before = views.get(figure.id);
    if (before) before.finalize();
    views.set(figure.id, found.view);
    drawn.set(figure.id, JSON.stringify(wanted));
    set(found.view, "hidden", [...hidden]);
    followZoom(figure, found.view);
  }

  // The table: a click on a column sorts by it, a third click brings the given order back.
  let sorting = null; // [column, direction]
  function sortable() {
    const table = document.getElementById("table");
    if (!table || table.dataset.sortable) return; // no runs yet, or kept by an update
    table.dataset.sortable = "yes";
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const given = [...body.rows];
    const value = (row, column) => column === 0 ? row.cells[0].textContent : Number(row.cells[column].dataset.value ?? NaN);
    function apply() {
      heads.forEach((head, n) => {
        if (sorting && sorting[0] === n) head.setAttribute("aria-sort", sorting[1] < 0 ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      if (!sorting) return body.append(...given);
      const [column, direction] = sorting;
      body.append(...[...given].sort((a, b) => {
        const x = value(a, column), y = value(b, column);
        if (typeof x === "string") return direction * x.localeCompare(y);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // unknown ones last
        return direction * (x - y);
      }));
    }
    heads.forEach((head, n) => {
      const first = n === 0 ? 1 : -1;
      const button = make("button", { type: "button", onclick: () => {
        const now = sorting && sorting[0] === n ? sorting[1] : 0;
        sorting = now === 0 ? [n, first] : now === first ? [n, -first] : null;
        apply();
      } }, head.textContent);
      head.replaceChildren(button);
    });
    apply();
  }

  // Marks tables that are wider than the screen.
  function cues() {
    for (const scroll of document.querySelectorAll(".scroll")) {
      const mark = () => scroll.classList.toggle("more", scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 4);
      scroll.onscroll = mark;
      mark();
    }
  }

  // Replaces the old text by the new; what the reader opened, scrolled to or is pointing at stays as it is.
  function replaceMain(text) {
    const old = document.querySelector("main"), fresh = make("main");
    fresh.innerHTML = text; // written by the page's own server, with all foreign text escaped
    const pairs = (selector) => { const before = [...old.querySelectorAll(selector)]; return [...fresh.querySelectorAll(selector)].map((one, n) => [one, before[n]]); };
    for (const [one, before] of pairs("details")) one.open = Boolean(before && before.open);
    for (const figure of fresh.querySelectorAll(".card")) { // the drawn charts stay until the new ones are ready
      const before = document.getElementById(figure.id);
      if (before) figure.querySelector(".chart").append(...before.querySelector(".chart").childNodes);
    }
    const scrolled = pairs(".scroll, .log").map(([one, before]) => [one, before ? before.scrollLeft : 0,
      before && before.scrollHeight - before.clientHeight - before.scrollTop > 4 ? before.scrollTop : -1]);
    old.replaceWith(fresh);
    for (const [one, left, top] of scrolled) { one.scrollLeft = left; one.scrollTop = top < 0 ? one.scrollHeight : top; }
  }

  const controls = () => [...document.querySelectorAll("main button, main select, main summary")];
  async function update(fragment) {
    const turn = ++drawing;
    const focus = controls().indexOf(document.activeElement);
    const pointed = document.querySelector(".chart:hover")?.parentElement.id;
    ({ methods, charts } = fragment);
    if (fragment.main !== undefined) replaceMain(fragment.main);
    legend();
    sortable();
    cues();
    for (const figure of document.querySelectorAll(".card")) {
      if (turn !== drawing) return; // a newer state has arrived
      const same = drawn.get(figure.id) === JSON.stringify(shown(figure.id));
      if (same || (figure.id === pointed && views.has(figure.id))) {
        tools(figure);
        followZoom(figure, views.get(figure.id));
        if (!same) figure.querySelector(".chart").onpointerleave = (event) => { event.target.onpointerleave = null; draw(figure); };
      } else await draw(figure);
    }
    if (focus >= 0 && document.activeElement === document.body) controls()[focus]?.focus({ preventScroll: true });
    document.body.dataset.ready = String(turn);
  }

  // The page of `fedl2g watch`: every message is a new state. It waits while the reader chooses from a list, selects
  // text or drags, and says so.
  function follow(address) {
    const said = make("p", { id: "connection", role: "status", hidden: "" });
    document.body.append(said);
    let waiting = null, pressed = false, lost = "";
    const busy = () => pressed || Boolean(document.activeElement?.matches("main select")) || !getSelection().isCollapsed;
    function proceed() {
      if (waiting && !busy()) { update(waiting); waiting = null; }
      said.textContent = lost || (waiting ? "Updates wait while you select." : "");
      said.hidden = !said.textContent;
    }
    const source = new EventSource(address);
    source.onopen = () => { lost = ""; proceed(); };
    source.onerror = () => { lost = lost || `No connection to fedl2g watch since ${new Date().toLocaleTimeString()}: what you see is from then.`; proceed(); };
    source.onmessage = (event) => { waiting = JSON.parse(event.data); proceed(); };
    addEventListener("pointerdown", () => { pressed = true; });
    for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, () => { pressed = false; setTimeout(proceed, 50); });
    for (const name of ["selectionchange", "focusout"]) document.addEventListener(name, () => setTimeout(proceed, 50));
  }

  // In print, sentences that are folded on the screen are unfolded.
  const folded = () => [...document.querySelectorAll("section > details:has(.verdicts)")];
  addEventListener("beforeprint", () => folded().forEach((one) => { one.dataset.was = one.open ? "open" : ""; one.open = true; }));
  addEventListener("afterprint", () => folded().forEach((one) => { one.open = Boolean(one.dataset.was); }));

  const data = JSON.parse(document.getElementById("content").textContent);
  addEventListener("resize", cues);
  update(data);
  if (data.live) follow(data.live);
})();
