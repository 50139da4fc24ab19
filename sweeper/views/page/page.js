"use strict";
// The page of a study, or of one of its trials (#trial-3).
//
// Its data are the JSON of sweeper's records: embedded in a report, or polled from the dashboard, which
// sends only what has changed. Everything shown is text: no string becomes HTML. What a reader has typed,
// chosen, opened, scrolled or focused stays as it is when new data arrive.

// ---- Elements and formats ----

const $ = (id) => document.getElementById(id);

function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const sum = (values) => values.reduce((total, each) => total + each, 0);
const isNumber = (value) => typeof value === "number";

function number(value, digits = 6) {
  if (!isNumber(value)) return value === null || value === undefined ? "-" : String(value);
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 10 ** digits) && !Number.isInteger(value)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  }
  return String(Number(value.toPrecision(digits)));
}

const choice = (value) => (value === null ? "None" : number(value));

function duration(seconds) {
  if (!isNumber(seconds)) return "-";
  if (seconds < 10) return seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  const pair = (large, name, small, smallName) =>
    `${Math.floor(whole / large)}${name}${String(Math.floor((whole % large) / small)).padStart(2, "0")}${smallName}`;
  if (whole >= 86400) return pair(86400, "d", 3600, "h");
  if (whole >= 3600) return pair(3600, "h", 60, "m");
  return whole >= 60 ? pair(60, "m", 1, "s") : `${whole}s`;
}

function bytes(count) {
  const power = Math.min(4, Math.floor(Math.log2(count || 1) / 10));
  return `${power ? (count / 1024 ** power).toFixed(1) : count} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

const moment = (text) => (text ? text.slice(0, 19).replace("T", " ") : "-");
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const lastLine = (text) => (text || "").trim().split("\n").pop().trim();
const stateOf = (state) => h("span", { class: `state ${state}` }, state);
const code = (text) => h("code", {}, text);
const digestOf = (digest) => (digest ? h("code", { title: digest }, digest.slice(0, 12)) : "-");
const trialLink = (number) => h("a", { href: `#trial-${number}`, "aria-label": `trial ${number}` }, String(number));
const params = (values) =>
  Object.entries(values)
    .map(([name, value]) => `${name}=${choice(value)}`)
    .join(" ");

// Replaces the content of an element if the data that it shows have changed, so that its focus and scrolling stay.
const rendered = new Map();
function redraw(element, data, content) {
  const key = JSON.stringify(data);
  if (rendered.get(element) === key) return;
  rendered.set(element, key);
  element.replaceChildren(...content(data));
}

// A table in its frame. `head` and `body` are rows of it.
function frame(caption, head, body) {
  const box = h(
    "div",
    { class: "scrolling", role: "region", tabindex: "0", "aria-label": `Table: ${caption}` },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), body),
  );
  return fadeEdge(box);
}

// A frame with more to its right fades there, so that a column is not taken for a narrow one.
const sized = new ResizeObserver((entries) => entries.forEach(({ target }) => markEdge(target.closest(".scrolling"))));
const markEdge = (box) => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
function fadeEdge(box) {
  box.addEventListener("scroll", () => markEdge(box));
  [box, ...box.children].forEach((each) => sized.observe(each));
  return box;
}

// A table that only shows: its cells are texts, numbers or nodes.
function table(caption, columns, rows) {
  const numeric = columns.map((_, index) => rows.some((row) => isNumber(row[index])));
  const style = (index) => (numeric[index] ? "number" : null);
  const cell = (content, index) => {
    const shown = content instanceof Node ? content : number(content);
    return h(index ? "td" : "th", { scope: index ? null : "row", class: style(index) }, shown);
  };
  const head = columns.map((name, index) => h("th", { scope: "col", class: style(index) }, name));
  return frame(caption, head, h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))));
}

// Shows a section with a table; hides it without rows.
function section(id, caption, columns, rows) {
  $(id).hidden = !rows.length;
  const texts = rows.map((row) => row.map((cell) => cell?.textContent ?? cell));
  redraw($(`${id}-table`), texts, () => (rows.length ? [table(caption, columns, rows)] : []));
}

// ---- Data ----

const store = { study: null, trials: new Map(), version: "", head: {} };
const prefix = document.body.dataset.prefix;
const source = document.body.dataset.source;

function receive(payload) {
  if (payload.all) store.trials = new Map();
  store.head = payload;
  store.study = payload.study;
  store.version = payload.version;
  for (const trial of payload.trials || []) store.trials.set(trial.number, derived(trial));
  store.trials = new Map([...store.trials].sort(([a], [b]) => a - b));
}

// Adds what several parts of the page use, under `own`.
function derived(trial) {
  const { attempts, lengths } = trial;
  const now = store.head.made_at || new Date();
  const spans = attempts.map(({ started_at: began, ended_at: ended, outcome }) =>
    Math.max(0, (Date.parse(ended || (outcome ? began : now)) - Date.parse(began)) / 1000),
  );
  trial.own = {
    spans,
    pauses: attempts.map((each, index) => {
      const before = attempts[index - 1]?.ended_at;
      return before ? Math.max(0, (Date.parse(each.started_at) - Date.parse(before)) / 1000) : 0;
    }),
    resumes: attempts.filter((each) => each.number > Math.max(1, trial.ignore_checkpoints_through) && each.start_step > 0),
    worked: sum(spans),
    isExtended: lengths.some((length) => length.epochs !== trial.target),
    stepsPerEpoch: stepsPerEpoch(trial),
  };
  return trial;
}

function stepsPerEpoch(trial) {
  const ratios = trial.checkpoints.filter((each) => each.epoch).map((each) => each.step / each.epoch);
  const ends = trial.attempts.filter((each) => ["complete", "pruned"].includes(each.outcome) && each.end_step);
  if (ends.length && trial.epochs.length) ratios.push(ends.pop().end_step / epochsDone(trial));
  return ratios.length ? Math.min(...ratios) : null;
}

const trials = () => [...store.trials.values()];
const objectives = () => store.study.objectives || [{ name: store.study.objective, direction: store.study.direction }];
const valueOf = (trial, name) =>
  trial.values ? trial.values[name] : name === objectives()[0].name ? trial.value : null;
const epochsDone = (trial) => (trial.epochs.length ? trial.epochs.at(-1).epoch + 1 : 0);
const hasValue = (trial) => ["complete", "pruned"].includes(trial.state) && !trial.hidden;

function leaders() {
  if (store.study.pareto) return store.study.pareto.map((each) => each.number);
  const sign = store.study.direction === "maximize" ? -1 : 1;
  const group = (store.study.codes || []).find((each) => each.current);
  return trials()
    .filter((trial) => trial.state === "complete" && isNumber(trial.value) && !trial.hidden)
    .filter((trial) => !group || group.trials.includes(trial.number))
    .sort((a, b) => sign * (a.value - b.value) || a.number - b.number)
    .slice(0, 5)
    .map((trial) => trial.number);
}

// Parameters and objectives, as axes of pictures and filters.
function axes() {
  const parameters = Object.entries(store.head.space).map(([name, range]) => ({
    key: `param:${name}`,
    label: name,
    ...range,
    value: (trial) => trial.params[name],
  }));
  const measured = objectives().map(({ name }) => {
    const values = trials()
      .map((trial) => valueOf(trial, name))
      .filter(isNumber);
    return {
      key: `value:${name}`,
      label: name,
      kind: "number",
      low: Math.min(...values),
      high: Math.max(...values),
      isObjective: true,
      value: (trial) => valueOf(trial, name) ?? undefined,
    };
  });
  return [...parameters, ...measured.filter((axis) => Number.isFinite(axis.low))];
}

// ---- Filters and choice of trials ----

const filters = { text: "", states: new Set(), ranges: new Map() };
let chosen = null; // a set of numbers; null for leaders and running trials

// Hidden trials are shown only if they are asked for.
const listedAs = (trial) => (trial.hidden ? "hidden" : trial.state);

function matches(trial) {
  if (filters.states.size ? !filters.states.has(listedAs(trial)) : trial.hidden) return false;
  if (filters.text) {
    const { number, state, digest, error, tags, note } = trial;
    const words = [number, state, params(trial.params), digest, error, ...(tags || []), note];
    const text = words.join(" ").toLowerCase();
    if (!filters.text.split(/\s+/).every((word) => text.includes(word))) return false;
  }
  return axes.cached.every((axis) => {
    const range = filters.ranges.get(axis.key);
    if (!range) return true;
    const value = axis.value(trial);
    if (value === undefined) return false;
    return axis.kind === "choice" ? range.has(JSON.stringify(value)) : value >= range[0] && value <= range[1];
  });
}

const matching = () => trials().filter(matches);

function chosenTrials() {
  const leading = chosen || new Set(leaders());
  return trials().filter((trial) => leading.has(trial.number) || (!chosen && trial.state === "running"));
}

function choose(numbers) {
  chosen = numbers && new Set(numbers);
  applyFilters();
  later(drawCurves);
}

function setRange(key, range) {
  if (range) filters.ranges.set(key, range);
  else filters.ranges.delete(key);
  showRanges();
  applyFilters();
}

function applyFilters() {
  const shown = new Set(matching().map((trial) => trial.number));
  const marked = new Set(chosenTrials().map((trial) => trial.number));
  trialsGrid.show(shown, marked);
  $("shown").textContent = `${shown.size} of ${counted(store.trials.size, "trial")} shown, ${marked.size} chosen`;
  parallel.show(shown, marked);
}

// Fields of the filters; they follow brushes, and brushes follow them.
function drawFilters() {
  const states = [...new Set(trials().map(listedAs))].sort();
  redraw($("filter-states"), states, () => [
    h("legend", {}, "State"),
    ...states.map((name) =>
      checkbox(name, filters.states.has(name), (on) => {
        filters.states[on ? "add" : "delete"](name);
        applyFilters();
      }),
    ),
  ]);
  const shape = axes.cached.map(({ key, label, kind, choices }) => [key, label, kind, choices]);
  redraw($("filter-axes"), shape, () =>
    axes.cached.map((axis) => {
      const changed = () => setRange(axis.key, rangeOf(axis));
      const fields =
        axis.kind === "choice"
          ? axis.choices.map((value) => checkbox(choice(value), true, changed, JSON.stringify(value)))
          : ["least", "greatest"].map((name) =>
              h("label", {}, `${name} `, h("input", { type: "number", step: "any", name, change: changed })),
            );
      return h("fieldset", { "data-axis": axis.key }, h("legend", {}, axis.label), ...fields);
    }),
  );
  showRanges();
}

function checkbox(label, isOn, changed, value) {
  const box = h("input", { type: "checkbox", value, change: () => changed(box.checked) });
  box.checked = isOn;
  return h("label", {}, box, label);
}

const fieldsOf = (key) => [...document.querySelector(`[data-axis=${CSS.escape(key)}]`).querySelectorAll("input")];

function rangeOf({ key, kind }) {
  const fields = fieldsOf(key);
  if (kind === "choice") {
    const on = fields.filter((box) => box.checked).map((box) => box.value);
    return on.length === fields.length ? null : new Set(on);
  }
  const [least, greatest] = fields.map((field) => (field.value === "" ? null : Number(field.value)));
  return least === null && greatest === null ? null : [least ?? -Infinity, greatest ?? Infinity];
}

function showRanges() {
  for (const { key, kind } of axes.cached) {
    const range = filters.ranges.get(key);
    fieldsOf(key).forEach((field, index) => {
      if (kind === "choice") field.checked = !range || range.has(field.value);
      else if (document.activeElement !== field)
        field.value = range && Number.isFinite(range[index]) ? number(range[index]) : "";
    });
  }
}

// ---- Tables that sort, filter and keep their rows ----

// A column: its header, the value to sort by, and its cell, a text or a node.
function column(label, value, cell = (record) => number(value(record)), more = {}) {
  return { key: label, label, value, cell, ...more };
}

const parameterColumn = (name) =>
  column(
    name,
    ({ params: given }) => given[name],
    ({ params: given }) => (name in given ? choice(given[name]) : "-"),
    { key: `param:${name}` },
  );

const FIRST_ROWS = 60; // rows below the window are made after the first drawing
const isNone = (value) => value === null || value === undefined;

function compared(a, b, sign) {
  if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
  return sign * (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b)));
}

class Grid {
  // With `onChoose`, each row has a box.
  constructor(id, caption, onChoose = null) {
    Object.assign(this, { id, caption, onChoose, sortedBy: "", descending: false, shape: "", records: [] });
    Object.assign(this, { most: FIRST_ROWS, rows: new Map(), shown: null, marked: new Set() });
  }

  update(columns, records, keyOf) {
    Object.assign(this, { columns, records, keyOf });
    for (const each of columns) each.style = records.some((record) => isNumber(each.value(record))) ? "number" : null;
    const shape = JSON.stringify(columns.map(({ key, label, style }) => [key, label, style]));
    if (shape !== this.shape) this.build(shape);
  }

  build(shape) {
    this.shape = shape;
    this.rows.clear();
    this.headers = this.columns.map(({ key, label, style }) => {
      const button = h("button", { type: "button", title: label, click: () => this.sortBy(key) }, label);
      return h("th", { scope: "col", class: style }, button);
    });
    this.body = h("tbody");
    $(this.id).replaceChildren(frame(this.caption, this.headers, this.body));
  }

  // The row of a record, made again if the record has changed.
  row(record) {
    const key = this.keyOf(record);
    let row = this.rows.get(key);
    if (row?.record !== record) {
      const name = `Choose ${this.caption.replace(/s$/, "").toLowerCase()} ${key}`;
      const change = () => this.onChoose(key, row.box.checked);
      const box = row ? row.box : this.onChoose && h("input", { type: "checkbox", "aria-label": name, change });
      const head = row ? row.element.firstChild : h("th", { scope: "row" }, box, this.columns[0].cell(record));
      const cells = this.columns.slice(1).map(({ style, cell }) => h("td", { class: style }, cell(record) ?? "-"));
      const element = row ? row.element : h("tr", { id: `${this.id}-${key}` });
      element.replaceChildren(head, ...cells);
      row = { box, element, record };
      this.rows.set(key, row);
    }
    if (row.box) row.box.checked = this.marked.has(key);
    row.element.classList.toggle("chosen", this.marked.has(key));
    return row.element;
  }

  sortBy(key) {
    const { greatestFirst } = this.columns.find((each) => each.key === key);
    this.descending = this.sortedBy === key ? !this.descending : Boolean(greatestFirst);
    this.sortedBy = key;
    this.draw();
  }

  show(shown, marked) {
    Object.assign(this, { shown, marked });
    this.draw();
  }

  draw() {
    const sorted = this.columns.find((each) => each.key === this.sortedBy); // none: in the given order
    const sign = this.descending ? -1 : 1;
    const records = this.records.filter((record) => !this.shown || this.shown.has(this.keyOf(record)));
    if (sorted) records.sort((a, b) => compared(sorted.value(a), sorted.value(b), sign));
    this.headers.forEach((header, index) => {
      if (this.columns[index] === sorted) header.ariaSort = this.descending ? "descending" : "ascending";
      else header.ariaSort = null;
    });
    // A row that is inserted again loses the keyboard's focus.
    const focused = document.activeElement;
    this.body.replaceChildren(...records.slice(0, this.most).map((record) => this.row(record)));
    if (this.body.contains(focused)) focused.focus({ preventScroll: true });
  }
}

const trialsGrid = new Grid("trials-table", "Trials", (key, isOn) => {
  const numbers = new Set(chosenTrials().map((trial) => trial.number));
  numbers[isOn ? "add" : "delete"](key);
  choose(numbers);
});
const configurationsGrid = new Grid("configurations-table", "Configurations");

function stateCell(trial) {
  const why = trial.state === "failed" ? lastLine(trial.error).slice(0, 120) : "";
  return h("span", {}, stateOf(trial.state), why && " ", why && h("span", { class: "quiet" }, why));
}

function epochsCell(trial) {
  const [done, of] = [epochsDone(trial), trial.target];
  const text = of ? `${done} of ${of}` : String(done);
  if (trial.state !== "running" || !of) return text;
  const label = `Finished epochs of trial ${trial.number}`;
  return h("span", {}, `${text} `, h("progress", { max: of, value: done, "aria-label": label }));
}

function historyOf(trial) {
  const words = trial.own.resumes.length ? [`resumed ${trial.own.resumes.length}×`] : [];
  if (trial.own.isExtended) words.push(`extended from ${trial.lengths[0].epochs}`);
  return words.join(", ") || "-";
}

function exactnessOf(trial) {
  const words = trial.verification ? [`verified: ${trial.verification.verdict}`] : [];
  const [all, differing] = [trial.audits.length, trial.audits.filter((audit) => !audit.identical).length];
  if (differing) words.push(`${differing} of ${all} audits differ`);
  else if (all) words.push(counted(all, "identical audit"));
  return words.join(", ") || "-";
}

const tagsOf = (trial) => (trial.tags || []).join(" ") || "-";

const valueEpoch = (trial) => (trial.value === null ? "-" : trial.value_of || "last epoch");

function trialColumns() {
  const measured = objectives().map(({ name, direction }) =>
    column(name, (trial) => valueOf(trial, name), undefined, {
      key: `value:${name}`,
      greatestFirst: direction === "maximize",
    }),
  );
  return [
    column("trial", (trial) => trial.number, (trial) => trialLink(trial.number)),
    column("state", (trial) => trial.state, stateCell),
    ...measured,
    ...(trials().some((trial) => trial.value_of) ? [column("value of", valueEpoch)] : []),
    column("epochs", epochsDone, epochsCell),
    ...Object.keys(store.head.space).map(parameterColumn),
    ...(trials().some((trial) => trial.tags) ? [column("tags", tagsOf)] : []),
    ...(trials().some((trial) => trial.note) ? [column("note", (trial) => trial.note || "-")] : []),
    ...(store.study.codes ? [column("code", (trial) => trial.code)] : []),
    column("attempts", (trial) => trial.attempts.length),
    column("resumed or extended", historyOf),
    column("worked", (trial) => trial.own.worked, (trial) => duration(trial.own.worked)),
    column("exactness", exactnessOf),
    column("digest", (trial) => trial.digest, (trial) => digestOf(trial.digest)),
  ];
}

// A dot for each repeat on the scale of all repeats, a line at the mean, and one along its interval, with an arrow
// where the interval goes on beyond the scale.
function dots({ mean, interval, values: repeats }, [low, high]) {
  if (!isNumber(mean)) return "-";
  const at = (value) => 6 + 188 * Math.min(Math.max((value - low) / (high - low || 1), 0), 1);
  const values = Object.values(repeats);
  const [from, to] = interval ?? [mean, mean];
  return svg(
    "svg",
    { class: "dots", viewBox: "0 0 200 20", role: "img", "aria-label": `Repeats: ${values.map((value) => number(value)).join(", ")}` },
    svg("line", { x1: at(mean), x2: at(mean), y1: 2, y2: 18 }),
    svg("title", {}, `mean ${number(mean)}${interval ? `, 95% interval from ${number(from)} to ${number(to)}` : ""}`),
    svg("line", { x1: at(from), x2: at(to), y1: 10, y2: 10 }),
    ...(from < low ? [svg("path", { class: "beyond", d: "M0,10l7,-5v10z" })] : []),
    ...(to > high ? [svg("path", { class: "beyond", d: "M200,10l-7,-5v10z" })] : []),
    ...values.map((value) => svg("circle", { cx: at(value), cy: 10, r: 4 })),
  );
}

function configurationTrials({ isConfirmation, trials: numbers }) {
  if (isConfirmation) return numbers.join(", ");
  return h("span", {}, ...numbers.flatMap((number, index) => [index ? ", " : null, trialLink(number)]));
}

let configurationsDrawn = "";
function drawConfigurations() {
  const confirmed = store.study.confirmed.map((each) => ({ ...each, isConfirmation: true }));
  const found = [...store.study.configurations, ...confirmed];
  $("configurations").hidden = !found.length;
  const shape = JSON.stringify(found);
  if (!found.length || shape === configurationsDrawn) return;
  configurationsDrawn = shape;
  const values = found.flatMap((each) => Object.values(each.values)).filter(isNumber);
  const scale = [Math.min(...values), Math.max(...values)];
  const names = [...new Set(found.flatMap((each) => Object.keys(each.params)))];
  const label = ({ number, isConfirmation }) => `${number}${isConfirmation ? " (confirmed)" : ""}`;
  configurationsGrid.update(
    [
      column("configuration", (each) => each.number, label),
      column(
        `mean ${store.study.objective} ± half of the 95% interval`,
        (each) => each.mean,
        (each) => each.text,
        { greatestFirst: store.study.direction === "maximize" },
      ),
      column("each repeat", (each) => each.std, (each) => dots(each, scale)),
      column("repeats", (each) => Object.keys(each.values).length),
      column("difference to the leader", (each) => each.comparison?.difference, (each) => each.difference),
      column("comparison", (each) => each.standing),
      ...names.map(parameterColumn),
      column("trials", (each) => each.trials[0], configurationTrials),
    ],
    found,
    label,
  );
  configurationsGrid.draw();
}

// ---- Pictures ----

// Those of Okabe and Ito, which people with the common kinds of colour blindness tell apart.
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676"];
const DARK = ["#56B4E9", "#E69F00", "#2BC79B", "#E39AC4", "#F0E442", "#FF8A5C", "#AEB7C2"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const SINGLE_CURVES = 24; // above this, the curves of one state are one trace

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
const colour = (index) => (isDark() ? DARK : LIGHT)[index % LIGHT.length];
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most = 60) => escaped(text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Pictures are drawn once they come into view: on a page of many trials, Plotly costs more than all the rest.
const inView = new Set();
const postponed = new Map();
let looked = null;
const firstLook = new Promise((resolve) => {
  looked = resolve;
});
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) inView[isIntersecting ? "add" : "delete"](target.id);
  looked(drawPostponed());
});

// Draws a picture, now or when it comes into view. Its label is there before.
function picture(id, label, work) {
  $(id).setAttribute("aria-label", label);
  postponed.set(id, work);
  observer.observe($(id));
  if (inView.has(id)) drawPostponed();
}

async function drawPostponed(ids = inView) {
  const works = [...postponed].filter(([id]) => ids.has(id));
  works.forEach(([id]) => postponed.delete(id));
  await Promise.all(works.map(([, work]) => work()));
}

// Returns the text that an element of a report holds, compressed and in base 64. The element is removed.
async function unpacked(element) {
  const bytes = atob(element.textContent);
  element.remove();
  const packed = new Uint8Array(bytes.length);
  for (let index = 0; index < bytes.length; index += 1) packed[index] = bytes.charCodeAt(index);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Runs Plotly's script, which a report holds, and of which a dashboard's page has the address.
let library = null;
function loadPlotly() {
  library ??= runPlotly($("library"));
  return library;
}

async function runPlotly(held) {
  const { src } = held.dataset;
  const script = h("script", { src }, src ? "" : await unpacked(held));
  const loaded = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }));
  document.head.append(script);
  if (src) await loaded;
}

function plot(id, traces, axesOf, label, more = {}) {
  picture(id, label, () => drawPlot(id, traces, axesOf, more));
}

async function drawPlot(id, traces, axesOf, more) {
  await loadPlotly();
  const ink = isDark() ? "#e6e9ed" : "#1b1f24";
  const axis = {
    showline: true,
    linecolor: ink,
    gridcolor: isDark() ? "#333a43" : "#e3e3e3",
    zeroline: false,
    automargin: true,
    exponentformat: "e",
  };
  const layout = {
    autosize: true,
    margin: { l: 60, r: 15, t: 15, b: 50 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13, color: ink },
    hovermode: "closest",
    hoverlabel: { align: "left" },
    legend: { orientation: "h", y: -0.2 },
    uirevision: id,
    ...more,
    xaxis: { ...axis, ...axesOf.x },
    yaxis: { ...axis, ...axesOf.y },
  };
  await Plotly.react(id, traces, layout, { displayModeBar: false, responsive: true });
  $(id).removeAllListeners("plotly_click");
  $(id).on("plotly_click", ({ points }) => {
    if (points[0].id) location.hash = `trial-${points[0].id}`;
  });
}

// A trace of points: those of `points` have x, y and the text of their hover.
function trace(name, points, mode, look = {}) {
  const { x, y, text, ids } = points;
  return { type: "scatter", mode, name: short(name), x, y, ids, hovertext: text, hoverinfo: "text", ...look };
}

// Points of one trace for each name, in the order of first use.
class Groups extends Map {
  of(name) {
    if (!this.has(name)) this.set(name, { x: [], y: [], text: [], ids: [] });
    return this.get(name);
  }

  add(name, x, y, text, id = "") {
    const { x: xs, y: ys, text: texts, ids } = this.of(name);
    xs.push(x);
    ys.push(y);
    texts.push(text);
    ids.push(id);
  }
}

// Axes of whole numbers have a tick at each number while there are few.
const FEW = 15;
const wholeTicks = (length) => ({ tickformat: ",d", ...(length <= FEW ? { dtick: 1 } : {}) });
const wholeNumbers = (title, most) => ({ title: { text: title }, rangemode: "tozero", ...wholeTicks(most) });

function metricsOf(list) {
  const ends = list.flatMap((trial) => [trial.epochs[0] || {}, trial.epochs.at(-1) || {}]);
  return [...new Set(ends.flatMap(Object.keys))].filter((name) => name !== "epoch");
}

function setOptions(select, names) {
  const kept = select.value;
  redraw(select, names, () => names.map((name) => h("option", { value: name }, name)));
  select.value = names.includes(kept) ? kept : (names[0] ?? "");
}

// The position of a step on an axis: epochs, steps, or seconds of training. The database has the times of
// attempts only, so a step's time is interpolated within the attempt that made it.
function positions(trial, axis) {
  const perEpoch = trial.own.stepsPerEpoch || 1;
  if (axis === "epoch") return (step) => step / perEpoch;
  if (axis === "step") return (step) => step;
  let before = 0;
  const parts = trial.attempts.map((attempt, index) => {
    const to = attempt.end_step ?? epochsDone(trial) * perEpoch;
    const part = { from: attempt.start_step || 0, to, before, seconds: trial.own.spans[index] };
    before += part.seconds;
    return part;
  });
  return (step, isStart) => {
    const holds = ({ from, to }) => (isStart ? step >= from : step > from) && step <= to;
    const part = parts.findLast(holds) || parts.at(-1);
    if (!part) return 0;
    const share = part.to > part.from ? Math.min(1, Math.max(0, (step - part.from) / (part.to - part.from))) : 1;
    return part.before + share * part.seconds;
  };
}

function curve(trial, metric, axis, smoothing) {
  const at = positions(trial, axis);
  const perEpoch = trial.own.stepsPerEpoch || 1;
  const line = { x: [], y: [], text: [], broken: [] };
  let [average, weight] = [0, 0];
  for (const epoch of trial.epochs) {
    if (!(metric in epoch)) continue;
    const value = epoch[metric];
    const x = axis === "epoch" ? epoch.epoch + 1 : at((epoch.epoch + 1) * perEpoch);
    if (isNumber(value)) {
      // Exponential moving average, corrected for its start.
      average = smoothing * average + (1 - smoothing) * value;
      weight = smoothing * weight + (1 - smoothing);
    } else line.broken.push(x);
    line.x.push(x);
    line.y.push(isNumber(value) ? average / weight : null);
    line.text.push(`trial ${trial.number}, epoch ${epoch.epoch + 1}: ${number(value)}`);
  }
  return line;
}

function between(line, x) {
  const after = line.x.findIndex((each) => each >= x);
  if (after <= 0) return after < 0 ? line.y.at(-1) : line.y[0];
  const [x0, x1, y0, y1] = [line.x[after - 1], line.x[after], line.y[after - 1], line.y[after]];
  return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0 || 1);
}

// Marks where an attempt resumed, and where a metric was not finite.
function marks(list, lines, axis) {
  const groups = new Groups();
  list.forEach((trial, index) => {
    const line = lines[index];
    if (!line.x.length) return;
    const at = positions(trial, axis);
    for (const attempt of trial.own.resumes) {
      const x = at(attempt.start_step, true);
      const text = `trial ${trial.number}: attempt ${attempt.number} resumes at step ${attempt.start_step}`;
      groups.add("resumed here", x, between(line, x), text);
    }
    const height = line.y.find(isNumber);
    if (height === undefined) return;
    for (const x of line.broken) groups.add("NaN or infinite", x, height, `trial ${trial.number}: NaN or infinite`);
  });
  return [...groups].map(([name, points]) => {
    const [symbol, color] =
      name === "resumed here" ? ["diamond-open", isDark() ? "#ffffff" : "#000000"] : ["x-thin", "#D55E00"];
    return trace(name, points, "markers", { marker: { symbol, size: 10, color, line: { width: 1.5, color } } });
  });
}

function curveTraces(list, metric, axis, smoothing) {
  const lines = list.map((trial) => curve(trial, metric, axis, smoothing));
  if (list.length > SINGLE_CURVES) return [...groupedTraces(list, lines), ...marks(list, lines, axis)];
  const traces = list.flatMap((trial, index) => {
    const color = colour(index);
    const history = historyOf(trial);
    const name = `trial ${trial.number}${history === "-" ? "" : ` (${history})`}`;
    const smooth = trace(name, lines[index], lines[index].x.length > 60 ? "lines" : "lines+markers", {
      legendgroup: String(index),
      marker: { size: 4 },
      line: { color, width: 2, dash: DASHES[index % DASHES.length] },
    });
    if (!smoothing) return [smooth];
    const look = { hoverinfo: "skip", showlegend: false, opacity: 0.3, legendgroup: String(index) };
    return [trace(name, curve(trial, metric, axis, 0), "lines", { ...look, line: { color, width: 1 } }), smooth];
  });
  return [...traces, ...marks(list, lines, axis)];
}

function groupedTraces(list, lines) {
  const leading = new Set(leaders());
  const groups = new Groups();
  list.forEach((trial, index) => {
    const group = groups.of(leading.has(trial.number) ? "leaders" : trial.state);
    for (const [key, gap] of [["x", null], ["y", null], ["text", ""]]) group[key].push(...lines[index][key], gap);
  });
  const names = [...groups.keys()].sort((a, b) => (a === "leaders") - (b === "leaders"));
  return names.map((name, index) => {
    const [color, width] = name === "leaders" ? [colour(0), 2.5] : [colour([6, 1, 2, 4][index % 4]), 0.7];
    return trace(name, groups.get(name), "lines", { ids: undefined, line: { color, width } });
  });
}

function curveAxes(list, axis, metric) {
  const y = { title: { text: short(metric, 40) } };
  if (axis === "time") return { x: { title: { text: "training time, seconds" }, rangemode: "tozero" }, y };
  if (axis === "step") return { x: wholeNumbers("steps", 99), y };
  return { x: wholeNumbers("epochs finished", Math.max(0, ...list.map(epochsDone))), y };
}

function drawCurves() {
  if ($("curves").hidden) return;
  const list = chosenTrials().filter((trial) => trial.epochs.length);
  const objective = objectives()[0].name;
  setOptions($("curves-metric"), metricsOf(trials()).sort((a, b) => (b === objective) - (a === objective)));
  const [metric, axis] = [$("curves-metric").value, $("curves-axis").value];
  const traces = curveTraces(list, metric, axis, Number($("curves-smoothing").value));
  const numbers = list.map((trial) => trial.number);
  const named = numbers.slice(0, 12).join(", ") + (numbers.length > 12 ? ` and ${numbers.length - 12} more` : "");
  const times = axis === "time" ? " Times are interpolated within each attempt." : "";
  $("curves-text").textContent = numbers.length
    ? `${metric} of ${numbers.length === 1 ? "trial" : "trials"} ${named}.${times}`
    : "No chosen trial has finished an epoch. Choose trials in the table.";
  const label = `${metric} by ${axis} of ${counted(numbers.length, "trial")}: ${named || "none"}`;
  plot("curves-picture", traces, curveAxes(list, axis, metric), label, { showlegend: true });
}

// Parallel coordinates. Plotly's own need WebGL, which compiles functions from text; the page's policy forbids that.
const [TOP, BOTTOM, SIDE] = [46, 300, 55];
const parallel = { show: () => null };

function drawParallel() {
  parallel.show = () => null;
  if ($("parallel").hidden) return;
  const list = trials().filter(hasValue);
  const names = axes.cached.map((axis) => axis.label).join(", ");
  picture("parallel-picture", `A line for each of ${list.length} trials over ${names}`, () => {
    drawLines(list, axes.cached);
    applyFilters();
  });
}

function drawLines(list, shown) {
  const width = Math.max($("parallel-frame").clientWidth || 600, shown.length * 90);
  const x = (index) => SIDE + ((width - 2 * SIDE) * index) / (shown.length - 1);
  const scales = shown.map(scaleOf);
  const height = BOTTOM + 30;
  const root = svg("svg", { class: "parallel", width, height, viewBox: `0 0 ${width} ${height}` });
  const pathOf = (trial) => {
    const points = shown.map((axis, index) => {
      const value = axis.value(trial);
      const y = value === undefined ? UNSET : yOf(scales[index].at(value));
      return `${x(index).toFixed(1)},${y.toFixed(1)}`;
    });
    return svg("path", { d: `M${points.join("L")}` }, svg("title", {}, `trial ${trial.number}: ${params(trial.params)}`));
  };
  const paths = new Map(list.map((trial) => [trial.number, pathOf(trial)]));
  root.style.setProperty("--faint", Math.max(0.08, Math.min(0.45, 60 / list.length)));
  const anchors = ["start", ...shown.slice(2).map(() => "middle"), "end"];
  const drawnAxes = shown.map((axis, index) => {
    // A conditional parameter, which some trials do not have.
    const unset = list.some((trial) => axis.value(trial) === undefined);
    return parallelAxis(axis, scales[index], x(index), index % 2, anchors[index], unset);
  });
  root.append(...paths.values(), ...drawnAxes.map(({ group }) => group));
  $("parallel-picture").replaceChildren(root);
  parallel.show = (numbers, marked) => {
    for (const [number, path] of paths) {
      path.classList.toggle("left-out", !numbers.has(number));
      path.classList.toggle("chosen", marked.has(number));
    }
    for (const { placeBrush } of drawnAxes) placeBrush();
  };
}

const UNSET = BOTTOM + 22; // the place of trials without a value
const yOf = (share) => BOTTOM - (BOTTOM - TOP) * share;

// A value's place on an axis as a share of its length, the range within two shares, and the shares of a range.
function scaleOf(axis) {
  if (axis.kind === "choice") {
    const names = axis.choices.map((value) => JSON.stringify(value));
    const half = 0.5 / names.length;
    const at = (value) => (2 * names.indexOf(JSON.stringify(value)) + 1) * half;
    const shares = axis.choices.map(at);
    return {
      at,
      ticks: axis.choices.map((value, index) => [choice(value), shares[index]]),
      within: (low, high) => new Set(names.filter((_, index) => shares[index] >= low && shares[index] <= high)),
      ends: (range) => {
        const on = shares.filter((_, index) => range.has(names[index]));
        return on.length ? [Math.min(...on) - half, Math.max(...on) + half] : [0, 0];
      },
    };
  }
  const [to, from] = axis.log ? [Math.log, Math.exp] : [Number, Number];
  const [low, high] = [to(axis.low), to(axis.high)];
  const at = (value) => Math.min(1, Math.max(0, (to(value) - low) / (high - low || 1)));
  const back = (share) => Number(from(low + share * (high - low)).toPrecision(4));
  // Of few whole numbers each has a tick; of many, the one nearest to the middle.
  const few = axis.whole && !axis.log && axis.high - axis.low <= 6;
  const middle = axis.whole ? Math.round(back(0.5)) : back(0.5);
  const inside = few ? Array.from({ length: axis.high - axis.low - 1 }, (_, index) => axis.low + 1 + index) : [middle];
  const between = inside.filter((value) => value > axis.low && value < axis.high).map((value) => [number(value, 3), at(value)]);
  const greatest = axis.high > axis.low ? [[number(axis.high, 4), 1]] : [];
  return {
    at,
    ticks: [[number(axis.low, 4), 0], ...between, ...greatest],
    within: (least, greatest) => [back(least), back(greatest)],
    ends: ([least, greatest]) => [axis.log && least <= 0 ? 0 : at(least), at(greatest)],
  };
}

function parallelAxis(axis, scale, x, isOdd, anchor, unset) {
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const brush = svg("rect", { class: "brush", x: x - 8, width: 16 });
  const place = ([low, high]) => {
    brush.setAttribute("y", yOf(high));
    brush.setAttribute("height", yOf(low) - yOf(high));
  };
  const hold = svg("rect", { class: "hold", x: x - 14, y: TOP - 4, width: 28, height: BOTTOM - TOP + 8 });
  hold.dataset.axisBrush = axis.key;
  const shareOf = (event) => {
    const share = (BOTTOM - (event.clientY - hold.getBoundingClientRect().top + TOP - 4)) / (BOTTOM - TOP);
    return share < 0.025 ? 0 : share > 0.975 ? 1 : share;
  };
  let from = null;
  const ends = (event) => [from, shareOf(event)].sort((a, b) => a - b);
  hold.addEventListener("pointerdown", (event) => {
    from = shareOf(event);
    hold.setPointerCapture(event.pointerId);
  });
  hold.addEventListener("pointermove", (event) => {
    if (from !== null) place(ends(event));
  });
  hold.addEventListener("pointerup", (event) => {
    const [low, high] = ends(event);
    from = null;
    setRange(axis.key, high - low < 0.015 ? null : scale.within(low, high));
  });
  const tick = ([text, share]) => svg("text", { x: x + 4, y: yOf(share) + 4 }, cut(text, 12));
  const none = unset ? [svg("text", { x: x + 4, y: UNSET + 4 }, "not set")] : [];
  const label = svg("text", { x, y: isOdd ? 14 : 30, "text-anchor": anchor }, cut(axis.label, 18));
  label.append(svg("title", {}, axis.label));
  const line = svg("line", { class: "axis", x1: x, x2: x, y1: TOP, y2: BOTTOM });
  return {
    group: svg("g", {}, line, label, ...scale.ticks.slice(0, 12).map(tick), ...none, brush, hold),
    placeBrush: () => place(filters.ranges.has(axis.key) ? scale.ends(filters.ranges.get(axis.key)) : [0, 0]),
  };
}

// A parameter against an objective. Trials that were trained longer or shorter than the most are drawn apart.
const SYMBOLS = ["circle", "square-open", "diamond-open", "triangle-up-open", "x-open"];
function drawScatter() {
  if ($("scatter").hidden) return;
  const list = trials().filter(hasValue);
  const parameters = axes.cached.filter((axis) => !axis.isObjective);
  const measured = axes.cached.filter((axis) => axis.isObjective);
  const pick = (select, from) => {
    setOptions(select, from.map((axis) => axis.label));
    return from.find((axis) => axis.label === select.value);
  };
  const axis = pick($("scatter-parameter"), parameters);
  const objective = pick($("scatter-objective"), measured);
  $("scatter-objectives").hidden = measured.length < 2;
  const groups = new Groups();
  for (const trial of list) {
    const [x, y] = [axis.value(trial), objective.value(trial)];
    if (x === undefined || !isNumber(y)) continue;
    const length = counted(trial.target ?? epochsDone(trial), "epoch");
    const whole = `complete, ${length}${trial.own.isExtended ? " (extended)" : ""}`;
    const name = trial.state === "pruned" ? "pruned (at its last epoch)" : whole;
    const text = short(`trial ${trial.number}: ${axis.label}=${choice(x)}, ${objective.label}=${number(y)}`, 200);
    groups.add(name, axis.kind === "choice" ? short(choice(x), 30) : x, y, text, String(trial.number));
  }
  const names = [...groups.keys()].sort();
  const traces = names.map((name, index) => {
    const marker = { symbol: SYMBOLS[index % SYMBOLS.length], color: colour(index), size: 8 };
    return trace(name, groups.get(name), "markers", { marker });
  });
  const x = {
    title: { text: short(axis.label) },
    type: axis.kind === "choice" ? "category" : axis.log ? "log" : "linear",
    ...(axis.whole && !axis.log ? wholeTicks(axis.high - axis.low) : {}),
  };
  const label = `${objective.label} by ${axis.label} of ${counted(list.length, "trial")}`;
  const y = { title: { text: short(objective.label, 40) } };
  plot("scatter-picture", traces, { x, y }, label, { showlegend: names.length > 1 });
}

function drawImportance() {
  const found = store.head.importance;
  const rows = (found?.shares ?? []).map(([name, share]) => {
    const bar = h("meter", { value: share, "aria-label": `Importance of ${name}` });
    return [name, h("span", {}, bar, ` ${Math.round(share * 100)}%`)];
  });
  section("importance", "Importance", ["parameter", "share"], rows);
  if (found)
    $("importance-text").textContent =
      `Share of each parameter in being among the best of ${counted(found.trials, "complete trial")} for ${found.objective} (PED-ANOVA).`;
}

// ---- The study's other sections ----

const ATTEMPTS = ["attempt", "outcome", "from step", "to step", "began (UTC)", "worked", "process", "reason"];
const attemptRows = (trial) =>
  trial.attempts.map((attempt, index) => [
    String(attempt.number),
    stateOf(attempt.outcome || "running"),
    attempt.start_step,
    attempt.end_step,
    moment(attempt.started_at),
    (attempt.outcome === "lost" ? "at most " : "") + duration(trial.own.spans[index]),
    `${attempt.host}, pid ${attempt.pid ?? "-"}`,
    lastLine(attempt.error) || (attempt.number <= trial.ignore_checkpoints_through ? "not resumed: the definition changed" : "-"),
  ]);

const VERIFIED = ["check", "verdict", "when (UTC)", "message"];
function verifiedRows({ verification: found, audits }) {
  const how = found && (found.mode === "interrupt" ? "verified: killed and resumed" : "verified: replayed");
  const audited = audits.map((audit) => [
    `audited from step ${audit.from_step} to ${audit.to_step}`,
    audit.identical ? "identical" : "differs",
    "-",
    "-",
  ]);
  return [...(found ? [[how, found.verdict, moment(found.checked_at), found.message || "-"]] : []), ...audited];
}

const LENGTHS = ["length in epochs", "epochs trained", "state", "value", "digest"];
function lengthRows({ lengths }) {
  if (lengths.length < 2) return [];
  const value = (each) => (each.values ? params(each.values) : each.value);
  return lengths.map((each) => [each.epochs, each.trained, each.state, value(each), digestOf(each.digest)]);
}

const EVALUATED = ["data", "step", "after epoch", "evaluated (UTC)", "metrics"];
const evaluatedRows = (trial) =>
  trial.evaluations.map((each) => [each.data, each.step, each.epoch, moment(each.evaluated_at), params(each.metrics)]);

function shownSetting(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(shownSetting).join(", ") || "none";
  if (typeof value !== "object") return String(value);
  const parts = Object.entries(value).map(([name, each]) => `${name}=${shownSetting(each)}`);
  return parts.join(", ") || "none";
}

function rungRows(list) {
  const decisions = new Map();
  for (const { decision } of list.flatMap((trial) => trial.rungs))
    if (decision) decisions.set(`${decision.first} ${decision.epochs}`, decision);
  return [...decisions.values()]
    .sort((a, b) => a.first - b.first || a.epochs - b.epochs)
    .map((each) => {
      const promoted = each.compared.filter((trial) => trial.promoted);
      const names = promoted.map((trial) => `${trial.number} (${number(trial.value)})`).join(", ") || "none";
      return [each.first, each.bracket, each.epochs, each.compared.length, names, moment(each.decided_at)];
    });
}

function drawDetails() {
  const { head } = store;
  const list = trials();
  const rungs = ["from trial", "bracket", "after epoch", "trials compared", "promoted", "decided (UTC)"];
  section("rungs", "Rungs", rungs, rungRows(list));
  const verified = list.flatMap((trial) => verifiedRows(trial).map((row) => [trialLink(trial.number), ...row]));
  section("verified", "Verifications and audits", ["trial", ...VERIFIED], verified);
  $("verified-text").textContent = head.exactness;
  $("verified").hidden = false;
  const settings = Object.entries(head.settings).map(([name, value]) => [name, shownSetting(value)]);
  section("settings", "Settings", ["setting", "value"], settings);
  const environments = head.environments.map((each) => [
    each.hosts.join(", "),
    params(each.versions),
    each.processor || "-",
    each.devices.join(", ") || "-",
    each.attempts,
  ]);
  const headers = ["hosts", "versions", "processor", "devices", "attempts"];
  section("environment", "Environments", headers, environments);
  section("identity", "Identity", ["item", "value"], head.identity.map(([name, value]) => [name, code(value)]));
  section("commands", "Commands", ["command"], head.commands.map((command) => [code(command)]));
}

// ---- Views ----

const STATES = ["complete", "running", "interrupted", "paused", "pruned", "failed", "waiting"];

function drawStudy() {
  const { study, head } = store;
  $("heading").textContent = study.study;
  document.title = `${study.study} · sweeper`;
  const goal = objectives()
    .map(({ name, direction }) => `${direction} ${name}`)
    .join(", ");
  const done = `${study.complete + study.pruned + study.failed} of ${study.target} trials done`;
  const left = head.seconds_left ? ` · about ${duration(head.seconds_left)} left` : "";
  $("lead").textContent = `${goal} · ${done}${left}`;
  $("answer").textContent = head.answer;
  redraw($("notices"), head.notices, () =>
    head.notices.map((each) => h("p", { class: "warning" }, h("strong", {}, "Note: "), each)),
  );
  const counts = STATES.filter((state) => study[state]).map((state) => [state, String(study[state])]);
  redraw($("counts"), counts, () =>
    counts.map(([state, count]) => h("div", {}, h("dt", {}, state), h("dd", { id: `count-${state}` }, count))),
  );
  axes.cached = axes();
  drawConfigurations();
  $("trials").hidden = !store.trials.size;
  if (!trialsGrid.sortedBy) {
    const [{ name, direction }] = objectives();
    Object.assign(trialsGrid, { sortedBy: `value:${name}`, descending: direction === "maximize" });
  }
  trialsGrid.update(trialColumns(), trials(), (trial) => trial.number);
  drawFilters();
  drawDetails();
  drawPictures();
  applyFilters();
  const sections = [...document.querySelectorAll("#study-view section:not([hidden])")];
  const links = sections.map((each) => [each.id, each.querySelector("h2").textContent]);
  redraw($("sections"), links, () => links.map(([id, name]) => h("li", {}, h("a", { href: `#${id}` }, name))));
}

function drawPictures() {
  const count = trials().filter(hasValue).length;
  const parameters = axes.cached.filter((axis) => !axis.isObjective).length;
  // Which sections there are decides the width of each, so it is decided before one is drawn.
  $("curves").hidden = !trials().some((trial) => trial.epochs.length);
  $("parallel").hidden = count < 2 || !parameters || parameters === axes.cached.length;
  $("scatter").hidden = $("parallel").hidden;
  drawImportance();
  drawCurves();
  drawParallel();
  drawScatter();
}

const BAR_SHARE = 0.02; // least share of the timeline's width, so that a short attempt is seen

function drawTimeline({ attempts, own }) {
  const { pauses } = own;
  const whole = own.worked + sum(pauses) || 1;
  const words = attempts.map((each, index) => `${each.number}: ${each.outcome || "running"}, ${duration(own.spans[index])}`);
  $("trial-timeline").setAttribute("aria-label", `Attempts over time: ${words.join("; ")}`);
  const bar = (seconds, name, title, text) => {
    const span = h("span", { class: name, title }, text);
    span.style.flex = `${Math.max(seconds / whole, BAR_SHARE)} 1 0`;
    return span;
  };
  redraw($("trial-timeline"), [words, pauses], () =>
    attempts.flatMap((attempt, index) => {
      const work = bar(own.spans[index], attempt.outcome || "running", words[index], words[index]);
      const pause = pauses[index];
      return pause ? [bar(pause, "pause", `pause of ${duration(pause)}`, ""), work] : [work];
    }),
  );
}

function drawTrial(trial) {
  const { own, attempts } = trial;
  $("heading").textContent = `Trial ${trial.number} of ${trial.study}`;
  document.title = `trial ${trial.number} of ${trial.study} · sweeper`;
  const paused = sum(own.pauses);
  const epochs = trial.target ? `${epochsDone(trial)} of ${trial.target}` : epochsDone(trial);
  const worked = `${duration(own.worked)} of work in ${counted(attempts.length, "attempt")}`;
  $("lead").textContent =
    `${epochs} epochs · ${worked}${paused ? `, ${duration(paused)} of pauses between them` : ""}`;
  const known = [
    ...objectives().map(({ name }) => [name, number(valueOf(trial, name))]),
    ...Object.entries(trial.params).map(([name, value]) => [name, choice(value)]),
    ["tags", trial.tags && tagsOf(trial)],
    ["note", trial.note],
    ["hidden", trial.hidden && "not listed, and never the best one"],
    ["value of", trial.value_of],
    ["seed", trial.seed],
    ["digest", trial.digest || "-"],
    ["code", trial.code || "-"],
    ["history", historyOf(trial) === "-" ? null : historyOf(trial)],
    ["began from", trial.warm_start && `${trial.warm_start.path} (${trial.warm_start.kind})`],
    ["not captured", trial.output_only.length ? `${trial.output_only.join(", ")} (output only)` : null],
  ].filter(([, text]) => text);
  redraw($("trial-facts"), [["state", trial.state], ...known], (facts) =>
    facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, name === "state" ? stateOf(text) : text))),
  );
  $("trial-error").hidden = !trial.error;
  $("trial-error").textContent = trial.error || "";
  drawTimeline(trial);
  section("trial-attempts", "Attempts of the trial", ATTEMPTS, attemptRows(trial));
  const checkpoints = trial.checkpoints.map((each) => [
    each.step,
    each.epoch,
    bytes(each.bytes),
    code(each.digest),
    code(each.path),
  ]);
  section("trial-checkpoints", "Checkpoints", ["step", "after epoch", "size", "digest", "path"], checkpoints);
  const decided = ({ promoted }) => (promoted === null ? "waits for the other trials" : promoted ? "promoted" : "ended here");
  const rungs = trial.rungs.map((each) => [
    each.epochs,
    each.value,
    decided(each),
    each.decision ? counted(each.decision.compared.length, "trial") : "-",
  ]);
  section("trial-rungs", "Rungs", ["after epoch", "value", "decision", "compared"], rungs);
  section("trial-lengths", "Lengths", LENGTHS, lengthRows(trial));
  section("trial-verified", "Verifications and audits", VERIFIED, verifiedRows(trial));
  section("trial-evaluated", "Evaluations", EVALUATED, evaluatedRows(trial));
  const files = ["read", "written"].flatMap((use) =>
    trial.files[use].map((file) => [code(file.path), use, code(file.digest ?? "-")]),
  );
  files.push(...trial.files.notices.map((notice) => [notice, "noticed", "-"]));
  section("trial-files", "Files", ["path", "use", "digest"], files);
  section("trial-commands", "Commands", ["command"], trial.commands.map((command) => [code(command)]));
  drawTrialCurves(trial);
  showLog(trial.log);
}

function drawTrialCurves(trial) {
  $("trial-curves").hidden = !trial.epochs.length;
  if (!trial.epochs.length) return;
  const objective = objectives()[0].name;
  const names = metricsOf([trial]).sort((a, b) => (b === objective) - (a === objective));
  const base = (name) => name.replace(/^val_/, "");
  const lines = names.map((name) => curve(trial, name, "epoch", 0));
  const traces = names.map((name, index) =>
    trace(name, lines[index], "lines+markers", {
      visible: base(name) === base(objective) ? true : "legendonly",
      marker: { size: 5 },
      line: { color: colour(index), dash: DASHES[index % DASHES.length] },
    }),
  );
  const label = `Metrics of trial ${trial.number} by epoch; the table of epochs has the values`;
  const marked = [...traces, ...marks([trial], lines.slice(0, 1), "epoch")];
  plot("trial-picture", marked, curveAxes([trial], "epoch", objective), label, { showlegend: true });
  redraw($("trial-epochs"), trial.epochs, () => [
    table("Epochs", ["epoch", ...names], trial.epochs.map((epoch) => [epoch.epoch + 1, ...names.map((name) => epoch[name])])),
  ]);
}

function showLog(log) {
  $("trial-log").hidden = !log;
  const pre = $("trial-log-text");
  if (!log || pre.textContent === log) return;
  const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  pre.textContent = log;
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

const trialInHash = () => /^#trial-(\d+)$/.exec(location.hash)?.[1];

function draw() {
  if (!store.study) return;
  const wanted = trialInHash();
  const trial = wanted === undefined ? null : store.trials.get(Number(wanted));
  $("study-view").hidden = wanted !== undefined;
  $("trial-view").hidden = !trial;
  const path = prefix ? [["studies", `${prefix}/`]] : [];
  path.push([store.study.study, wanted === undefined ? null : "#"]);
  if (wanted !== undefined) path.push([`trial ${wanted}`, null]);
  redraw($("path"), path.length > 1 ? path : [], () =>
    path.map(([name, href]) => h("li", { "aria-current": href ? null : "page" }, href ? h("a", { href }, name) : name)),
  );
  const elsewhere = $("elsewhere");
  if (elsewhere && store.head.elsewhere) {
    elsewhere.href = store.head.elsewhere + (trial ? `/trials?numbers=${trial.number}` : "");
    elsewhere.textContent = `this ${trial ? "trial" : "study"} in optuna-dashboard`;
  }
  if (wanted === undefined) drawStudy();
  else if (trial) drawTrial(trial);
  else {
    $("heading").textContent = `Trial ${wanted} of ${store.study.study}`;
    $("lead").textContent = "This trial has not begun.";
  }
}

let last = "";
function route() {
  const [before, now] = [last, location.hash];
  last = now;
  const isTrial = (hash) => hash.startsWith("#trial-");
  if (!isTrial(before) && !isTrial(now)) return;
  draw();
  if (isTrial(now)) {
    scrollTo(0, 0);
    $("heading").focus();
  } else document.querySelector(`#trials-table a[href="${before}"]`)?.focus();
  followLog();
}

// Runs work in the next frame, once however often it is asked for.
const waiting = new Map();
function later(work) {
  cancelAnimationFrame(waiting.get(work));
  waiting.set(work, requestAnimationFrame(work));
}

// ---- Beginning, and keeping up to date ----

const POLL_SECONDS = 2;

async function ask(address, version) {
  const headers = version ? { "If-None-Match": `"${version}"` } : {};
  const answer = await fetch(address, { cache: "no-store", headers });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(`${address} answered ${answer.status}`);
  return answer.json();
}

async function refresh() {
  const since = store.version ? `?since=${encodeURIComponent(store.version)}` : "";
  const payload = await ask(`${source}${since}`, store.version);
  if (payload) {
    receive(payload);
    draw();
  }
  await followLog();
}

async function followLog() {
  const trial = store.trials.get(Number(trialInHash() ?? -1));
  if (!source || !trial || (trial.log !== undefined && trial.state !== "running")) return;
  const { log } = await ask(`${source.replace(/data\.json$/, "")}trials/${trial.number}/log.json`);
  trial.log = log;
  if (trialInHash() === String(trial.number)) showLog(log);
}

async function keepUpToDate() {
  await new Promise((resolve) => {
    setTimeout(resolve, POLL_SECONDS * 1000);
  });
  if (!document.hidden) {
    try {
      await refresh();
      $("connection").hidden = true;
    } catch (error) {
      $("connection").hidden = false;
    }
    document.documentElement.dataset.polled = Date.now();
  }
  keepUpToDate();
}

function listen() {
  addEventListener("hashchange", route);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filter-text").addEventListener("input", (event) => {
    filters.text = event.target.value.trim().toLowerCase();
    applyFilters();
  });
  $("filters").addEventListener("reset", () => {
    Object.assign(filters, { text: "", states: new Set(), ranges: new Map() });
    // The browser empties the fields after this event.
    setTimeout(() => {
      rendered.delete($("filter-states"));
      drawFilters();
      applyFilters();
    });
  });
  $("choose-shown").addEventListener("click", () => choose(matching().map((trial) => trial.number)));
  $("choose-automatic").addEventListener("click", () => choose(null));
  for (const id of ["curves-metric", "curves-axis", "curves-smoothing"])
    $(id).addEventListener("input", () => later(drawCurves));
  for (const id of ["scatter-parameter", "scatter-objective"])
    $(id).addEventListener("input", () => later(drawScatter));
  for (const button of document.querySelectorAll("button[data-picture]"))
    button.addEventListener("click", () => {
      const filename = `${store.study.study}-${button.dataset.picture.replace("-picture", "")}`;
      Plotly.downloadImage(button.dataset.picture, { format: "png", scale: 2, filename });
    });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth || trialInHash()) return;
    width = innerWidth;
    later(drawParallel);
  });
  const resize = async (to) => {
    await drawPostponed(new Set([...postponed.keys()].filter((id) => $(id).checkVisibility())));
    const size = to ? { width: to, autosize: false } : { width: null, autosize: true };
    document.querySelectorAll(".js-plotly-plot").forEach((each) => Plotly.relayout(each, size));
  };
  addEventListener("beforeprint", () => resize(680));
  addEventListener("afterprint", () => resize(0));
}

async function begin() {
  listen();
  last = location.hash;
  fadeEdge($("parallel-frame"));
  const embedded = $("data");
  if (embedded) {
    receive(JSON.parse(await unpacked(embedded)));
  } else receive(await ask(source));
  draw();
  if (postponed.size) await firstLook;
  document.documentElement.dataset.drawn = "yes";
  setTimeout(() => {
    trialsGrid.most = Infinity;
    if (!trialInHash()) applyFilters();
  }, 500); // once the first rows are on the screen
  setTimeout(loadPlotly, 3000); // for a reader who scrolls or prints
  if (source) await followLog();
}

begin()
  .catch((error) => {
    console.error(error);
    if ($("connection")) $("connection").hidden = false;
  })
  .finally(() => {
    if (source) keepUpToDate();
  });
