"use strict";
// Draws what /live sends. Names come from peers: everything goes in as text, nothing as markup.
(() => {
  const SILENT_MS = 5000;
  const $ = (id) => document.getElementById(id);
  const filter = $("filter"), pause = $("pause"), state = $("state");
  let latest = null, paused = false;

  const element = (tag, text, cls) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (cls) made.className = cls;
    return made;
  };
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(4);
  };
  const LABELS = {letters: "dead letters"};
  const drawList = (place, entries) => {
    place.replaceChildren(...entries.map(([name, value]) => {
      const box = element("div"), figure = element("dd", shown(value));
      figure.dataset.name = name;
      figure.dataset.value = value === null ? "" : String(value);
      box.append(element("dt", LABELS[name] ?? name.replaceAll("_", " ")), figure);
      return box;
    }));
  };
  const drawTable = (table) => {
    const section = element("section"), title = element("h2", table.title), scroll = element("div", undefined, "scroll");
    title.id = "table-" + table.title.replaceAll(/\W/g, "-");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-labelledby", title.id);
    const grid = element("table"), head = element("tr");
    // Numbers end at the right, and so does the title over them.
    const looks = table.columns.map((_, index) => table.rows.some((row) => typeof row[index] === "number") ? "number" : "");
    for (const [index, name] of table.columns.entries()) {
      const cell = element("th", name, looks[index]);
      cell.scope = "col";
      head.append(cell);
    }
    const top = element("thead");
    top.append(head);
    const body = element("tbody"), wanted = filter.value.toLowerCase();
    for (const row of table.rows) {
      if (wanted && !row.some((value) => String(value).toLowerCase().includes(wanted))) continue;
      const line = element("tr");
      for (const [index, value] of row.entries()) line.append(element("td", shown(value), looks[index]));
      body.append(line);
    }
    if (!body.children.length) {
      const cell = element("td", "none");
      cell.colSpan = table.columns.length;
      const line = element("tr");
      line.append(cell);
      body.append(line);
    }
    grid.append(top, body);
    scroll.append(grid);
    section.append(title, scroll);
    if (table.left_out) section.append(element("p", table.left_out + " more are not shown"));
    return section;
  };
  const draw = () => {
    if (latest === null) return;
    document.title = latest.title;
    $("title").textContent = latest.title;
    const focused = document.activeElement && document.activeElement.getAttribute("aria-labelledby");
    const scrolls = new Map([...document.querySelectorAll(".scroll")].map((s) => [s.getAttribute("aria-labelledby"), [s.scrollTop, s.scrollLeft]]));
    drawList($("figures"), Object.entries(latest.figures));
    drawList($("counters"), Object.entries(latest.counters));
    $("tables").replaceChildren(...latest.tables.map(drawTable));
    for (const scroll of document.querySelectorAll(".scroll")) {
      const label = scroll.getAttribute("aria-labelledby");
      const place = scrolls.get(label);
      if (place) [scroll.scrollTop, scroll.scrollLeft] = place;
      if (label === focused) scroll.focus({preventScroll: true});
    }
  };
  const tell = (text, bad) => {
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("bad", bad);
  };
  filter.addEventListener("input", draw);
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) draw();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== filter) {
      event.preventDefault();
      filter.focus();
    }
  });
  const live = () => {
    const source = new EventSource("live");
    let silence = 0;
    const again = (why) => {
      clearTimeout(silence);
      tell(why, true);
      // The browser gives up by itself when it is refused; a daemon that is restarted refuses for a while.
      source.close();
      setTimeout(live, 1000);
    };
    const heard = () => {
      clearTimeout(silence);
      // There is a picture every second. A daemon that stands still, or a line that is dead without a word, is no error to the browser.
      silence = setTimeout(again, SILENT_MS, "no news, trying again");
    };
    heard();
    source.onmessage = (message) => {
      heard();
      latest = JSON.parse(message.data);
      tell(latest.state, !latest.ready);
      if (!paused) draw();
    };
    source.onerror = () => again("no connection, trying again");
  };
  live();
})();
