// The console's additions to pages that are whole without it: local times, charts, live parts, and forms that are sent once.
"use strict";
(() => {
  const each = (root, selector, run) => root.querySelectorAll(selector).forEach(run);

  // Times are in UTC; the title has the local time.
  const times = root => each(root, "time[datetime]", t => {
    const at = new Date(t.getAttribute("datetime"));
    if (!isNaN(at)) t.title = at.toLocaleString(undefined, { timeZoneName: "short" });
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
    const number = (r, h) => { const n = Number(r.cells[h.cellIndex].textContent); return isNaN(n) ? null : n; };
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
    place.replaceChildren();
    new uPlot({ width: place.clientWidth, height: 260, tzDate: at => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      axes: [{ ...axis, values: ticks, space: 90, incrs: [1, 5, 15, 30, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 604800, 2592000, 31536000] }, { ...axis, size: 80 }],
      series: [{ label: "Time", value: (u, at) => at == null ? "–" : utc(at).slice(0, 19) + "Z" }, ...names.map((label, i) => ({ label, stroke: colors[i % colors.length], width: 2 }))] }, data, place);
  });

  // A live part holds rows for the tables of charts, which keep 15 minutes of one row a second.
  const append = root => each(root, "tr[data-append]", row => {
    const body = document.getElementById(row.dataset.append)?.tBodies[0];
    if (!body) return;
    body.append(row);
    while (body.rows.length > 900) body.rows[0].remove();
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

  // A live part follows its stream while its page is visible. A lost stream says since when.
  const live = root => each(root, "[data-stream]", part => {
    const state = document.getElementById(part.id + "-state");
    let source, place, last = new Date(), paused = false, ended = false;
    const say = text => { if (state && state.textContent !== text) state.textContent = text; };
    const utc = at => at.toISOString().slice(0, 19).replace("T", " ") + "Z";
    const open = () => {
      if (source || document.hidden || paused || ended) return;
      const address = new URL(part.dataset.stream, location);
      if (place) { // after a pause, the stream goes on after the last event that came
        address.searchParams.set("after", place);
        address.searchParams.delete("last");
      }
      source = new EventSource(address);
      source.onopen = () => say("Live");
      source.onmessage = event => {
        last = new Date();
        say("Live");
        if (part.dataset.swap === "prepend") {
          place = event.lastEventId;
          part.insertAdjacentHTML("afterbegin", event.data);
          while (part.children.length > 200) part.lastElementChild.remove();
        } else {
          const focus = focused(part);
          htmx.swap(part, event.data, { swapStyle: "innerHTML" });
          focus();
        }
        times(part);
        append(part);
        charts(document);
        if (part.querySelector("[data-ended]")) { // a browser would open the stream again
          ended = true;
          close("Ended");
        }
      };
      source.onerror = () => say("Not updated since " + utc(last));
    };
    const close = text => { source?.close(); source = null; say(text); };
    document.addEventListener("visibilitychange", () => ended || (document.hidden ? close("Paused: the tab is hidden") : open()));
    addEventListener("pagehide", () => ended || close("Paused"));
    const button = document.getElementById(part.id + "-pause");
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => {
        paused = !paused;
        button.textContent = paused ? "Continue" : "Pause";
        paused ? close("Paused since " + utc(new Date())) : open();
      });
    }
    open();
  });

  // A chart is as wide as its page.
  let width = innerWidth, later;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(later);
    each(document, ".chart", place => place.replaceChildren());
    later = setTimeout(() => charts(document), 100);
  });

  const enhance = root => { times(root); once(root); charts(root); live(root); };
  document.addEventListener("DOMContentLoaded", () => enhance(document));
})();
