// Draws the charts from the JSON in the page. Names are text, never markup: Plotly reads some HTML, so they are escaped for it.
"use strict";
(() => {
  const state = { measure: "final", axis: "step", centre: "mean", seeds: false, hidden: new Set() };
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const text = (s) => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = (i) => css(`--c${i % 8}`);
  const faint = (hex, alpha) => `rgba(${[1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)).join(",")},${alpha})`;
  let charts = [];

  const unit = (longest) => (longest < 300 ? [1, "s"] : longest < 3 * 3600 ? [60, "min"] : [3600, "h"]);

  function lineTraces(chart) {
    const key = chart.by.map((k) => state[k]).join("/");
    const wall = chart.by.includes("axis") && state.axis === "wall";
    const shown = chart.series.filter((s) => s.curves[key] && !state.hidden.has(s.i));
    const longest = Math.max(1, ...shown.flatMap((s) => s.curves[key].x));
    const [scale, name] = wall ? unit(longest) : [1, "steps"];
    const at = (xs) => (wall ? xs.map((x) => x / scale) : xs);
    const traces = [];
    for (const s of shown) {
      const c = s.curves[key], line = colour(s.i), x = at(c.x);
      const known = c.lo.map((v, k) => k).filter((k) => c.lo[k] !== null && c.hi[k] !== null);
      if (known.length > 1) {
        traces.push({
          x: [...known.map((k) => x[k]), ...known.map((k) => x[k]).reverse()],
          y: [...known.map((k) => c.hi[k]), ...known.map((k) => c.lo[k]).reverse()],
          fill: "toself", fillcolor: faint(line, 0.16), line: { width: 0 }, hoverinfo: "skip", mode: "lines", name: text(s.name), meta: "band",
        });
      }
      const seeds = state.seeds && s.seeds ? s.seeds[chart.by.slice(0, 2).map((k) => state[k]).join("/")] || [] : [];
      for (const seed of seeds) {
        traces.push({ x: at(seed.x), y: seed.y, mode: "lines", line: { width: 1, color: faint(line, 0.55) }, hoverinfo: "skip", name: text(seed.name), meta: "seed" });
      }
      const format = chart.y === "percent" ? "%{y:.0%}" : "%{y:.4~g}";
      traces.push({
        x, y: c.y, name: text(s.name), meta: "line", mode: c.x.length <= 25 ? "lines+markers" : "lines",
        line: { color: line, width: 2.4, dash: dashes[s.i % 4] }, marker: { size: c.x.length === 1 ? 9 : 5 },
        hovertemplate: format,
      });
    }
    return [traces, { xaxis: { title: { text: wall ? `training time (${name})` : "environment steps", font: { size: 12 }, standoff: 8 }, hoverformat: wall ? ".1f" : ",d" } }];
  }

  function dotTraces(chart) {
    const key = chart.by.map((k) => state[k]).join("/");
    const traces = chart.series.filter((s) => !state.hidden.has(s.i) && s.points[key]).map((s) => {
      const p = s.points[key];
      return {
        type: "bar", x: p.map((v) => text(v.label)), y: p.map((v) => v.y), name: text(s.name), meta: "bar",
        marker: { color: faint(colour(s.i), 0.8), line: { color: colour(s.i), width: 1 } }, hovertemplate: "%{y:.0%}",
        error_y: { type: "data", symmetric: false, array: p.map((v) => v.hi - v.y), arrayminus: p.map((v) => v.y - v.lo), color: css("--ink"), thickness: 1.4, width: 4 },
      };
    });
    return [traces, { barmode: "group", bargap: 0.25, bargroupgap: 0.08, hovermode: "closest", xaxis: { type: "category", showgrid: false } }];
  }

  function draw(chart) {
    const node = document.getElementById(chart.id);
    if (!node) return;
    const [traces, own] = chart.kind === "bars" ? dotTraces(chart) : lineTraces(chart);
    const touch = matchMedia("(pointer: coarse)").matches;
    const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"), spikecolor: css("--muted"), spikethickness: 1, fixedrange: touch, automargin: true, separatethousands: true, tickfont: { size: 12 } };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x unified", hoverdistance: 60, dragmode: touch ? false : "zoom",
      font: { family: css("--sans"), size: 13, color: css("--muted") }, margin: { l: 44, r: 12, t: 10, b: 40 },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans") } },
      yaxis: { ...axis, ...(chart.y === "percent" ? { tickformat: ".0%", range: [-0.03, 1.03] } : { tickformat: "~g" }), nticks: 6 },
      ...own, xaxis: { ...axis, nticks: 7, ...own.xaxis },
    };
    Plotly.react(node, traces, layout, { displayModeBar: false, responsive: true, showTips: false }).then(() => { node.dataset.drawn = traces.length; });
  }

  const drawAll = () => charts.forEach(draw);

  function reflect() {
    for (const input of document.querySelectorAll(".controls input")) {
      input.checked = input.type === "checkbox" ? state[input.name] : state[input.name] === input.value;
    }
    for (const button of document.querySelectorAll("button[data-series]")) {
      button.setAttribute("aria-pressed", String(!state.hidden.has(Number(button.dataset.series))));
    }
  }

  // An animation that cannot be stopped is hard on some readers: a GIF stands still on request, and by itself where the system asks for it.
  function stillness(figure) {
    const img = figure.querySelector("img"), button = figure.querySelector("button");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const set = (still) => {
      if (still && !canvas.isConnected) {
        canvas.width = img.naturalWidth; canvas.height = img.naturalHeight;
        canvas.getContext("2d").drawImage(img, 0, 0);
        img.after(canvas);
      }
      canvas.hidden = !still;
      img.classList.toggle("hidden", still);
      button.textContent = still ? "Play the animation" : "Pause the animation";
      button.hidden = false;
    };
    button.addEventListener("click", () => set(canvas.hidden || !canvas.isConnected));
    img.decode().then(() => set(matchMedia("(prefers-reduced-motion: reduce)").matches)).catch(() => {});
  }

  function setUp() {
    charts = JSON.parse(document.getElementById("charts").textContent);
    reflect();
    drawAll();
    document.querySelectorAll(".gif").forEach(stillness);
    const video = document.querySelector(".hero video");
    if (video && matchMedia("(prefers-reduced-motion: no-preference)").matches) video.play().catch(() => {});
  }

  document.addEventListener("change", (event) => {
    const input = event.target.closest(".controls input");
    if (!input) return;
    state[input.name] = input.type === "checkbox" ? input.checked : input.value;
    drawAll();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-series]");
    if (!button) return;
    const i = Number(button.dataset.series);
    if (!state.hidden.delete(i)) state.hidden.add(i);
    reflect();
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Live: ask the one page there is whether it changed, and lay the new content in place of the old.
  let tag = null;
  async function poll() {
    try {
      const head = await fetch("/", { method: "HEAD", cache: "no-store" });
      const now = head.headers.get("ETag");
      if (tag !== null && now !== tag) {
        const page = new DOMParser().parseFromString(await (await fetch("/", { cache: "no-store" })).text(), "text/html");
        const open = [...document.querySelectorAll("details[open][id]")].map((d) => d.id);
        for (const id of ["page", "charts"]) document.getElementById(id).replaceWith(document.adoptNode(page.getElementById(id)));
        document.title = page.title;
        for (const id of open) { const d = document.getElementById(id); if (d) d.open = true; }
        setUp();
      }
      tag = now;
      root.dataset.connected = "yes";
    } catch { root.dataset.connected = "no"; }
    setTimeout(poll, 1500);
  }

  setUp();
  if (root.dataset.live) poll();
})();
