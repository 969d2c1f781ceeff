// The console's additions to pages that are whole without it: local times, charts, live parts, and forms that are sent once.
"use strict";
(() => {
  const each = (root, selector, run) => root.querySelectorAll(selector).forEach(run);

  // A time of these 30 days is shown as how long ago it is; the title has the time in UTC and the local one.
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const times = root => each(root, "time[datetime]", t => {
    const at = new Date(t.getAttribute("datetime"));
    if (isNaN(at)) return;
    const seconds = (at - Date.now()) / 1e3, size = Math.abs(seconds), near = t.title !== "" && size < 2592000;
    t.title = at.toISOString().slice(0, 19).replace("T", " ") + "Z, " + at.toLocaleString(undefined, { timeZoneName: "short" });
    if (!near) return;
    const [unit, of] = size < 60 ? ["second", 1] : size < 3600 ? ["minute", 60] : size < 86400 ? ["hour", 3600] : ["day", 86400];
    t.textContent = relative.format(Math.trunc(seconds / of), unit);
  });

  // A form is sent once: the button of a form that is on its way does nothing.
  const once = root => each(root, "form[data-once]", form => form.addEventListener("submit", event => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  }));
  addEventListener("pageshow", () => each(document, "form[data-sent]", form => delete form.dataset.sent));

  // A chart draws the table that follows it. It rounds; its table does not.
  const charts = root => each(root, ".chart[data-table]", place => {
    const table = document.getElementById(place.dataset.table);
    if (!table || !window.uPlot || table.tBodies[0].rows.length < 2) return;
    const all = [...table.tHead.rows[0].cells].slice(1), groups = all.filter(c => c.classList.contains("group"));
    const heads = all.filter(c => c.classList.contains("number"));
    const rows = [...table.tBodies[0].rows];
    const time = r => Date.parse(r.cells[0].querySelector("time")?.dateTime ?? r.cells[0].textContent) / 1000;
    const number = (r, h) => { const n = Number(r.cells[h.cellIndex].textContent.replaceAll(",", "")); return isNaN(n) ? null : n; };
    let names = heads.map(h => h.textContent), data = [rows.map(time), ...heads.map(h => rows.map(r => number(r, h)))];
    if (groups.length) { // a line for each of the first groups, of the first number
      const name = r => groups.map(g => r.cells[g.cellIndex].textContent).join(", ");
      const times = [...new Set(rows.map(time))];
      names = [...new Set(rows.map(name))].slice(0, 8);
      const of = new Map(rows.map(r => [time(r) + " " + name(r), number(r, heads[0])]));
      data = [times, ...names.map(n => times.map(t => of.get(t + " " + n) ?? null))];
    }
    if (data[0][0] > data[0][data[0].length - 1]) data.forEach(d => d.reverse());
    const style = getComputedStyle(document.documentElement), color = name => style.getPropertyValue(name).trim();
    const colors = ["--accent", "--bad", "--good", "--warn"].map(color);
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 } };
    const utc = at => new Date(at * 1e3).toISOString(); // as the table writes it
    const ticks = (u, at, i, space, step) => at.map(t => step < 60 ? utc(t).slice(11, 19) : step < 86400 ? utc(t).slice(11, 16) : utc(t).slice(0, 10));
    const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
    const tick = { values: (u, at) => at.map(n => n == null ? "" : brief.format(n)), size: (u, texts) => 24 + 8 * Math.max(3, ...(texts ?? []).map(t => t.length)) };
    // A spike would flatten the rest: the axis ends at twice the 90th percentile, and a note names the peak.
    const above = data.slice(1).flat().filter(n => n > 0).sort((a, b) => a - b), peak = above.at(-1), most = 2 * above[Math.ceil(above.length * .9) - 1];
    const cut = "cut" in place.dataset && peak > 2 * most;
    const own = groups.length ? 0 : Math.max(0, heads.findIndex(h => h.classList.contains("own"))); // the number with an axis of its own; 0: none
    place.replaceChildren();
    if (cut) place.append(Object.assign(document.createElement("p"), { className: "hint", textContent: "The peak of " + brief.format(peak) + " is cut off; the table has it." }));
    new uPlot({ ...(cut ? { scales: { y: { range: [0, most] } } } : {}), width: place.clientWidth, height: 260, tzDate: at => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      axes: [{ ...axis, values: ticks, space: 90, incrs: [1, 5, 15, 30, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 604800, 2592000, 31536000] }, { ...axis, ...tick }, ...(own ? [{ ...axis, ...tick, scale: "own", side: 1, grid: { show: false } }] : [])],
      series: [{ label: "Time", value: (u, at) => at == null ? "–" : utc(at).slice(0, 19) + "Z" }, ...names.map((label, i) => ({ label, scale: own && i === own ? "own" : "y", width: 2, stroke: colors[i % colors.length], ...(own && i === own ? { stroke: color("--soft"), width: 1, dash: [4, 4] } : {}) }))] }, data, place);
  });

  // A live part holds the newest rows of the chart's table, which keeps 15 minutes of one row a second.
  const append = root => each(root, "tr[data-append]", row => {
    const rows = document.getElementById(row.dataset.append)?.tBodies[0].rows;
    if (!rows?.length || rows[rows.length - 1].cells[0].textContent >= row.cells[0].textContent) return;
    rows[0].parentElement.append(row);
    if (rows.length > 900) rows[0].remove();
  });

  // A swap replaces the element that has the focus: the one with the same address or name gets it, else the one in its place.
  const focused = part => {
    const stops = () => [...part.querySelectorAll("a[href], button, summary, [tabindex='0']")];
    const old = document.activeElement, place = stops().indexOf(old);
    const name = e => e.tagName + (e.getAttribute("href") ?? e.getAttribute("aria-label") ?? e.textContent);
    return () => {
      const all = stops();
      if (place >= 0) (all.find(e => name(e) === name(old)) ?? all[Math.min(place, all.length - 1)] ?? document.getElementById("content")).focus({ preventScroll: true });
    };
  };

  // A live part is read again every two seconds while its page is visible. If that fails, the page says since when, and why.
  const live = part => {
    const state = document.getElementById("live-state"), button = document.getElementById("live-pause");
    let tag = "", last = new Date(), paused = false, busy = false, ended = false;
    const idle = () => paused || document.hidden;
    const say = text => { if (state.textContent !== text) state.textContent = text; };
    const since = at => " since " + at.toISOString().slice(0, 19).replace("T", " ") + "Z";
    const show = html => {
      const focus = focused(part);
      part.innerHTML = html;
      focus();
      times(part);
      append(part);
      charts(document);
      ended = part.querySelector("[data-ended]") !== null;
    };
    const read = async () => {
      if (busy || ended || idle()) return;
      busy = true;
      try {
        const answer = await fetch(part.dataset.live, { headers: { "If-None-Match": tag }, signal: AbortSignal.timeout(15000) });
        const html = await answer.text();
        if (idle()) return;
        if (answer.status === 401) {
          ended = true;
          return say("Signed out. Not updated" + since(last));
        }
        if (!answer.ok && answer.status !== 304) throw new Error(new DOMParser().parseFromString(html, "text/html").querySelector(".problem strong")?.textContent ?? "status " + answer.status);
        if (answer.ok) show(html);
        tag = answer.headers.get("ETag");
        last = new Date();
        say(ended ? "Ended" : "Live");
      } catch (fault) {
        if (!idle()) say("Not updated" + since(last) + ": " + fault.message);
      } finally {
        busy = false;
      }
    };
    document.addEventListener("visibilitychange", () => ended || (document.hidden ? say("Paused: the tab is hidden") : read()));
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? "Continue" : "Pause";
      ended || (paused ? say("Paused" + since(new Date())) : read());
    });
    setInterval(read, 2000);
    read();
  };

  // A chart is as wide as its page.
  let width = innerWidth, later;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(later);
    each(document, ".chart", place => place.replaceChildren());
    later = setTimeout(() => charts(document), 100);
  });

  // A menu closes by Escape, and by a click beside it.
  const close = unless => each(document, "header details[open]", menu => { if (!menu.contains(unless)) menu.open = false; });
  addEventListener("click", event => close(event.target));
  addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    document.activeElement.closest?.("header details[open]")?.querySelector("summary").focus();
    close(null);
  });

  const enhance = root => { times(root); once(root); charts(root); each(root, "[data-live]", live); };
  document.addEventListener("DOMContentLoaded", () => enhance(document));
})();
