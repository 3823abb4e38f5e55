"use strict";
(() => {
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const themes = ["auto", "light", "dark"];
  const holders = [...document.querySelectorAll("[data-figure]")];
  const report = { errors: 0, plots: 0 };

  const publish = () => {
    root.dataset.plots = String(report.plots);
    root.dataset.errors = String(report.errors);
  };
  const failed = () => { report.errors += 1; publish(); };
  window.addEventListener("error", failed);
  window.addEventListener("unhandledrejection", failed);
  document.addEventListener("securitypolicyviolation", failed);

  // Figures carry no page colours: they are read from the style sheet, so that themes agree.
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const themed = (layout) => {
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule-strong"),
      zerolinecolor: colour("--rule-strong"), tickfont: { color: colour("--ink-2"), size: 12 } };
    const out = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--rule-strong"),
        font: { color: colour("--ink") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--rule-strong"), activecolor: colour("--ink") } };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        const title = { font: { size: 12, color: colour("--ink-2") }, ...layout[key].title };
        out[key] = { ...axis, ...layout[key], title };
      }
    }
    return out;
  };

  // Named one by one: the default set would offer to send the figure to a service.
  const buttons = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const draw = (figures) => Promise.all(holders.map((holder) => {
    const figure = figures[holder.dataset.figure];
    const config = { responsive: true, displaylogo: false,
      showSendToCloud: false, showEditInChartStudio: false, modeBarButtons: buttons,
      toImageButtonOptions: { format: "svg", filename: holder.dataset.figure } };
    return window.Plotly.react(holder, figure.data, themed(figure.layout), config);
  }));

  const inflate = async () => {
    const text = document.getElementById("plotly-deflate").textContent;
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };

  // On paper: light colours, the paper's width, and every fold that belongs there open.
  const printing = (figures) => {
    let opened = [];
    let theme = null;
    window.addEventListener("beforeprint", () => {
      theme = root.dataset.theme ?? null;
      root.dataset.theme = "light";
      opened = [...document.querySelectorAll("details.printed:not([open])")];
      opened.forEach((part) => { part.open = true; });
      if (!report.plots) return;
      holders.forEach((holder) => {
        const figure = figures[holder.dataset.figure];
        const layout = { ...themed(figure.layout), width: 720 };
        window.Plotly.react(holder, figure.data, layout, { staticPlot: true });
      });
    });
    window.addEventListener("afterprint", () => {
      if (theme === null) delete root.dataset.theme; else root.dataset.theme = theme;
      opened.forEach((part) => { part.open = false; });
      if (report.plots) draw(figures);
    });
  };

  const start = async () => {
    publish();
    const figures = read("figures");
    try {
      if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old");
      root.classList.add("plots");
      if (holders.length > 0) {
        await inflate();
        await draw(figures);
      }
      report.plots = holders.filter((holder) => holder.querySelector(".main-svg")).length;
    } catch (error) {
      report.errors += 1;
      root.classList.remove("plots");
      const note = document.getElementById("plot-trouble");
      note.textContent = `Figures could not be drawn (${error.message}); the tables hold every number.`;
      note.hidden = false;
      document.querySelectorAll("details.numbers").forEach((part) => { part.open = true; });
    }
    root.dataset.state = "ready";
    publish();
    const redraw = () => { if (report.plots) draw(figures); };
    dark.addEventListener("change", redraw);
    document.addEventListener("themechange", redraw);
    printing(figures);
  };

  const setTheme = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    document.getElementById("theme").textContent = `Theme: ${name}`;
    document.dispatchEvent(new Event("themechange"));
  };
  const nextTheme = () => {
    const now = themes.indexOf(root.dataset.theme ?? "auto");
    setTheme(themes[(now + 1) % themes.length]);
  };
  document.getElementById("theme").addEventListener("click", nextTheme);

  // Contents: the part in view is marked; j and k step through the parts.
  const parts = [...document.querySelectorAll("main > section")];
  const links = new Map(parts.map((part) =>
    [part, document.querySelector(`nav a[href="#${CSS.escape(part.id)}"]`)]));
  const current = () => {
    const passed = parts.filter((part) => part.getBoundingClientRect().top <= 120);
    return passed.length ? passed[passed.length - 1] : parts[0];
  };
  const mark = () => {
    const here = current();
    links.forEach((link, part) => {
      if (part === here) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  };
  window.addEventListener("scroll", mark, { passive: true });
  mark();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "t") nextTheme();
    if (event.key !== "j" && event.key !== "k") return;
    const index = parts.indexOf(current()) + (event.key === "j" ? 1 : -1);
    const part = parts[Math.min(Math.max(index, 0), parts.length - 1)];
    part.scrollIntoView();
    links.get(part).focus({ preventScroll: true });
    mark();
  });

  // Tables sort by the number behind a cell where there is one, else by its text.
  const key = (row, index) => {
    const cell = row.cells[index];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  document.querySelectorAll("button.sort").forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const falling = head.getAttribute("aria-sort") === "ascending";
      head.parentElement.querySelectorAll("[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => ({ row, key: key(row, head.cellIndex) }));
      rows.sort((a, b) => (falling ? -1 : 1) * compare(a.key, b.key));
      body.append(...rows.map(({ row }) => row));
    });
  });

  start();
})();
