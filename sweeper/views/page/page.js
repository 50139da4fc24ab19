"use strict";
// The page of a study, of one of its trials (#trial-3), or of all studies of a database.
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

const isNumber = (value) => typeof value === "number";

function number(value, digits = 6) {
  if (!isNumber(value)) return value === null || value === undefined ? "-" : String(value);
  const size = Math.abs(value);
  const short = value.toPrecision(digits);
  if (size && (size < 1e-4 || size >= 10 ** digits) && !Number.isInteger(value)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  }
  return String(Number(short));
}

const choice = (value) => (isNumber(value) ? number(value) : value === null ? "None" : String(value));

function duration(seconds) {
  if (!isNumber(seconds)) return "-";
  if (seconds < 10) return seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${seconds.toFixed(1)}s`;
  for (const [unit, name, part, partName] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "m"],
    [60, "m", 1, "s"],
  ]) {
    if (Math.round(seconds) >= unit) {
      const whole = Math.round(seconds);
      return `${Math.floor(whole / unit)}${name}${String(Math.floor((whole % unit) / part)).padStart(2, "0")}${partName}`;
    }
  }
  return `${Math.round(seconds)}s`;
}

function bytes(count) {
  let amount = count;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${unit === "B" ? amount : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

const moment = (text) => (text ? text.slice(0, 19).replace("T", " ") : "-");
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const lastLine = (text) => (text || "").trim().split("\n").pop().trim();
const stateOf = (state) => h("span", { class: `state ${state}` }, state);
const digestOf = (digest) => (digest ? h("code", { title: digest }, digest.slice(0, 12)) : "-");
const trialLink = (number) => h("a", { href: `#trial-${number}`, "aria-label": `trial ${number}` }, String(number));
const params = (values) =>
  Object.entries(values)
    .map(([name, value]) => `${name}=${choice(value)}`)
    .join(" ");
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// A table that only shows. Columns: [header, is it of numbers?]; cells are texts or nodes.
function table(caption, columns, rows) {
  const cell = (content, index) =>
    h(index ? "td" : "th", { scope: index ? null : "row", class: columns[index][1] ? "number" : null }, content ?? "-");
  const headers = columns.map(([name, isNumeric]) =>
    h("th", { scope: "col", class: isNumeric ? "number" : null }, name),
  );
  return h(
    "div",
    { class: "scrolling", role: "region", tabindex: "0", "aria-label": `Table: ${caption}` },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...headers)),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
    ),
  );
}

function facts(pairs) {
  return pairs.map(([name, content]) => h("div", {}, h("dt", {}, name), h("dd", {}, content)));
}

function commandList(commands) {
  const lines = commands.flatMap(([command, effect]) => [h("dt", {}, h("code", {}, command)), h("dd", {}, effect)]);
  return h("dl", { class: "commands" }, ...lines);
}

// Shows a section if it has content; replaces the content only if `data` has changed.
const rendered = new Map();
function section(id, data, content) {
  const isThere = data !== null && !(Array.isArray(data) && !data.length);
  $(id).hidden = !isThere;
  const key = isThere ? JSON.stringify(data) : "";
  if (rendered.get(id) === key) return;
  rendered.set(id, key);
  $(`${id}-table`).replaceChildren(...(isThere ? [content(data)] : []));
}

// ---- Data ----

const store = { study: null, trials: new Map(), version: "", head: {} };
const prefix = document.body.dataset.prefix;
const source = document.body.dataset.source;

function receive(payload) {
  if (payload.all) store.trials = new Map();
  for (const trial of payload.trials || []) store.trials.set(trial.number, derived(trial));
  store.trials = new Map([...store.trials].sort(([a], [b]) => a - b));
  store.head = payload;
  store.study = payload.study;
  store.version = payload.version;
}

// Adds what several parts of the page use, under `own`.
function derived(trial) {
  const attempts = trial.attempts;
  const ends = (attempt) =>
    Date.parse(attempt.ended_at || (attempt.outcome ? attempt.started_at : store.head.made_at || new Date()));
  const spans = attempts.map((attempt) => Math.max(0, (ends(attempt) - Date.parse(attempt.started_at)) / 1000));
  const resumes = attempts.filter((each) => each.number > Math.max(1, trial.anew_after) && each.start_step > 0);
  const lengths = trial.lengths.map((length) => length.epochs);
  trial.own = {
    spans,
    resumes,
    worked: spans.reduce((sum, each) => sum + each, 0),
    isExtended: new Set([...lengths, trial.target]).size > 1 && lengths.length > 0,
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
const epochsDone = (trial) => (trial.epochs.length ? trial.epochs[trial.epochs.length - 1].epoch + 1 : 0);
const isComplete = (trial) => trial.state === "complete" && isNumber(valueOf(trial, objectives()[0].name));

function leaders() {
  if (store.study.pareto) return store.study.pareto.map((each) => each.number);
  const sign = store.study.direction === "maximize" ? -1 : 1;
  const group = (store.study.codes || []).find((each) => each.current);
  return trials()
    .filter((trial) => isComplete(trial) && (!group || group.trials.includes(trial.number)))
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
    value: (trial) => (name in trial.params ? trial.params[name] : undefined),
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
      isEmpty: !values.length,
    };
  });
  return [...parameters, ...measured.filter((axis) => !axis.isEmpty)];
}

// ---- Filters and choice of trials ----

const filters = { text: "", states: new Set(), ranges: new Map() };
let chosen = null; // a set of numbers; null for leaders and running trials

function matches(trial) {
  if (filters.states.size && !filters.states.has(trial.state)) return false;
  if (filters.text) {
    const text =
      `${trial.number} ${trial.state} ${params(trial.params)} ${trial.digest || ""} ${trial.error || ""}`.toLowerCase();
    if (
      !filters.text
        .toLowerCase()
        .split(/\s+/)
        .every((word) => text.includes(word))
    )
      return false;
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
  if (chosen) return trials().filter((trial) => chosen.has(trial.number));
  const leading = new Set(leaders());
  return trials().filter((trial) => leading.has(trial.number) || trial.state === "running");
}

function choose(numbers) {
  chosen = numbers && new Set(numbers);
  showChoice();
  later(drawCurves);
}

function setRange(key, range) {
  if (range) filters.ranges.set(key, range);
  else filters.ranges.delete(key);
  showRanges();
  applyFilters();
}

function applyFilters() {
  const shown = matching();
  trialsGrid.show(new Set(shown.map((trial) => String(trial.number))));
  const total = store.trials.size;
  $("shown").textContent = `${shown.length} of ${counted(total, "trial")} shown, ${chosenTrials().length} chosen`;
  drawn.parallel.show(new Set(shown.map((trial) => trial.number)));
}

function showChoice() {
  const numbers = new Set(chosenTrials().map((trial) => String(trial.number)));
  trialsGrid.mark(numbers);
  applyFilters();
}

// Fields of the filters; they follow brushes, and brushes follow them.
function drawFilters() {
  const states = [...new Set(trials().map((trial) => trial.state))].sort();
  section2($("filter-states"), states, (names) => [
    h("legend", {}, "State"),
    ...names.map((name) =>
      checkbox(name, filters.states.has(name), (on) => {
        filters.states[on ? "add" : "delete"](name);
        applyFilters();
      }),
    ),
  ]);
  const shape = axes.cached.map(({ key, label, kind, choices }) => [key, label, kind, choices]);
  section2($("filter-axes"), shape, () =>
    axes.cached.map((axis) =>
      h(
        "fieldset",
        { "data-axis": axis.key },
        h("legend", {}, axis.label),
        ...(axis.kind === "choice"
          ? axis.choices.map((value) =>
              checkbox(choice(value), true, () => setRange(axis.key, choicesOf(axis.key)), JSON.stringify(value)),
            )
          : ["least", "greatest"].map((which) =>
              h(
                "label",
                {},
                `${which} `,
                h("input", {
                  type: "number",
                  step: "any",
                  name: which,
                  change: () => setRange(axis.key, rangeOf(axis.key)),
                }),
              ),
            )),
      ),
    ),
  );
  showRanges();
}

function checkbox(label, isOn, changed, value) {
  const box = h("input", { type: "checkbox", value, change: () => changed(box.checked) });
  box.checked = isOn;
  return h("label", {}, box, label);
}

const fieldsOf = (key) => [...document.querySelector(`[data-axis=${CSS.escape(key)}]`).querySelectorAll("input")];

function rangeOf(key) {
  const [least, greatest] = fieldsOf(key).map((field) => (field.value === "" ? null : Number(field.value)));
  return least === null && greatest === null ? null : [least ?? -Infinity, greatest ?? Infinity];
}

function choicesOf(key) {
  const boxes = fieldsOf(key);
  const on = boxes.filter((box) => box.checked).map((box) => box.value);
  return on.length === boxes.length ? null : new Set(on);
}

function showRanges() {
  for (const axis of axes.cached) {
    const range = filters.ranges.get(axis.key);
    const fields = fieldsOf(axis.key);
    if (axis.kind === "choice") for (const box of fields) box.checked = !range || range.has(box.value);
    else
      fields.forEach((field, index) => {
        if (document.activeElement !== field)
          field.value = range && Number.isFinite(range[index]) ? number(range[index]) : "";
      });
  }
}

// As `section`, for the content of any element.
function section2(element, data, content) {
  const key = JSON.stringify(data);
  if (rendered.get(element) === key) return;
  rendered.set(element, key);
  element.replaceChildren(...content(data));
}

// ---- Tables that sort, filter and keep their rows ----

const FIRST_ROWS = 60;

class Grid {
  // `columns`: {key, label, isNumeric, value: what to sort by, cell: text or node}; `choose` adds a box to each row.
  constructor(id, caption, { choose: onChoose = null, sortedBy = "" } = {}) {
    Object.assign(this, {
      id,
      caption,
      onChoose,
      sortedBy,
      descending: false,
      rows: new Map(),
      shape: "",
      columns: [],
      most: FIRST_ROWS,
    });
  }

  update(columns, records, keyOf) {
    this.columns = columns;
    const shape = JSON.stringify(columns.map(({ key, label }) => [key, label]));
    if (shape !== this.shape) this.build(shape);
    for (const [key, row] of this.rows) {
      if (records.some((record) => keyOf(record) === key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    records.forEach((record, index) => this.put(keyOf(record), record, index));
    this.sort();
  }

  build(shape) {
    this.shape = shape;
    this.rows.clear();
    this.headers = this.columns.map((column) =>
      h(
        "th",
        { scope: "col", class: column.isNumeric ? "number" : null },
        h("button", { type: "button", title: column.label, click: () => this.sortBy(column.key) }, column.label),
      ),
    );
    this.body = h("tbody");
    const frame = h(
      "div",
      { class: "scrolling", role: "region", tabindex: "0", "aria-label": `Table: ${this.caption}` },
      h("table", {}, h("caption", {}, this.caption), h("thead", {}, h("tr", {}, ...this.headers)), this.body),
    );
    $(this.id).replaceChildren(frame);
  }

  put(key, record, index) {
    let row = this.rows.get(key);
    if (row) row.index = index;
    if (row && row.record === record) return;
    if (!row) {
      const head = h("th", { scope: "row" });
      if (this.onChoose) {
        const box = h("input", {
          type: "checkbox",
          "aria-label": `Choose ${this.caption.replace(/s$/, "").toLowerCase()} ${key}`,
          change: () => this.onChoose(key, box.checked),
        });
        head.append(box);
      }
      head.append(this.columns[0].cell(record));
      row = {
        index,
        element: h("tr", { id: `${this.id}-${key}`, "data-key": key }, head),
        box: head.querySelector("input"),
      };
      this.rows.set(key, row);
    }
    row.record = record;
    const cells = this.columns
      .slice(1)
      .map((column) => h("td", { class: column.isNumeric ? "number" : null }, column.cell(record) ?? "-"));
    while (row.element.children.length > 1) row.element.lastChild.remove();
    row.element.append(...cells);
  }

  sortBy(key) {
    const column = this.columns.find((each) => each.key === key);
    this.descending = this.sortedBy === key ? !this.descending : Boolean(column.greatestFirst);
    this.sortedBy = key;
    this.sort();
  }

  sort() {
    const column = this.columns.find((each) => each.key === this.sortedBy); // none: in the given order
    const sign = this.descending ? -1 : 1;
    const isNone = (value) => value === null || value === undefined;
    const rows = [...this.rows.values()].map((row) => [
      column ? column.value(row.record) : row.index,
      row.index,
      row.element,
    ]);
    rows.sort(([a, m], [b, n]) => {
      if (isNone(a) || isNone(b)) return isNone(a) - isNone(b) || m - n;
      return sign * (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b))) || m - n;
    });
    this.headers.forEach((header, index) => {
      if (this.columns[index] === column)
        header.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    // A row that is moved loses the keyboard's focus, so only those at a wrong place are moved.
    let at = this.body.firstChild;
    for (const [, , element] of rows) {
      if (element === at) at = at.nextSibling;
      else this.body.insertBefore(element, at);
    }
  }

  // Rows below the window are laid out after the first drawing, which they would double.
  show(keys) {
    let count = 0;
    for (const element of this.body.children) {
      element.hidden = !keys.has(element.dataset.key) || ++count > this.most;
    }
  }

  mark(keys) {
    for (const [key, row] of this.rows) {
      row.box.checked = keys.has(key);
      row.element.classList.toggle("chosen", keys.has(key));
    }
  }
}

const trialsGrid = new Grid("trials-table", "Trials", {
  choose: (key, isOn) => {
    const numbers = new Set(chosenTrials().map((trial) => trial.number));
    numbers[isOn ? "add" : "delete"](Number(key));
    choose(numbers);
  },
});
const configurationsGrid = new Grid("configurations-table", "Configurations");
const studiesGrid = new Grid("studies-table", "Studies");

function plain(key, label, isNumeric, value, cell) {
  return {
    key,
    label,
    isNumeric,
    value,
    cell: cell || ((record) => (isNumeric ? number(value(record)) : String(value(record) ?? "-"))),
  };
}

function stateCell(trial) {
  const why = trial.state === "failed" ? lastLine(trial.error) : "";
  return why
    ? h("span", {}, stateOf(trial.state), " ", h("span", { class: "quiet" }, why.slice(0, 120)))
    : stateOf(trial.state);
}

function epochsCell(trial) {
  const done = epochsDone(trial);
  const text = trial.target ? `${done} of ${trial.target}` : String(done);
  if (trial.state !== "running" || !trial.target) return text;
  return h(
    "span",
    {},
    text,
    " ",
    h("progress", { max: trial.target, value: done, "aria-label": `Finished epochs of trial ${trial.number}` }),
  );
}

function historyOf(trial) {
  const words = trial.own.resumes.length ? [`resumed ${trial.own.resumes.length}×`] : [];
  if (trial.own.isExtended) words.push(`extended from ${trial.lengths[0].epochs}`);
  return words.join(", ") || "-";
}

function exactnessOf(trial) {
  const words = trial.verification ? [`verified: ${trial.verification.verdict}`] : [];
  const differing = trial.audits.filter((audit) => !audit.alike).length;
  if (trial.audits.length)
    words.push(
      differing
        ? `${differing} of ${trial.audits.length} audits differ`
        : counted(trial.audits.length, "identical audit"),
    );
  return words.join(", ") || "-";
}

function trialColumns() {
  const measured = objectives().map(({ name, direction }) => ({
    ...plain(`value:${name}`, name, true, (trial) => valueOf(trial, name)),
    greatestFirst: direction === "maximize",
  }));
  const parameters = Object.entries(store.head.space).map(([name, range]) =>
    plain(
      `param:${name}`,
      name,
      range.kind === "number",
      (trial) => trial.params[name],
      (trial) => (name in trial.params ? choice(trial.params[name]) : "-"),
    ),
  );
  const ofEpoch = trials().some((trial) => trial.value_of)
    ? [plain("value_of", "value of", false, (trial) => (trial.value === null ? "-" : trial.value_of || "last epoch"))]
    : [];
  const codes = store.study.codes ? [plain("code", "code", false, (trial) => trial.code)] : [];
  return [
    plain(
      "trial",
      "trial",
      true,
      (trial) => trial.number,
      (trial) => trialLink(trial.number),
    ),
    plain("state", "state", false, (trial) => trial.state, stateCell),
    ...measured,
    ...ofEpoch,
    plain("epochs", "epochs", true, epochsDone, epochsCell),
    ...parameters,
    ...codes,
    plain("attempts", "attempts", true, (trial) => trial.attempts.length),
    plain("history", "resumed or extended", false, historyOf),
    plain(
      "worked",
      "worked",
      true,
      (trial) => trial.own.worked,
      (trial) => duration(trial.own.worked),
    ),
    plain("exactness", "exactness", false, exactnessOf),
    plain(
      "digest",
      "digest",
      false,
      (trial) => trial.digest,
      (trial) => digestOf(trial.digest),
    ),
  ];
}

function intervalText(center, interval) {
  if (!isNumber(center)) return "-";
  if (!interval || !isNumber(interval[0]) || !isNumber(interval[1])) return number(center);
  const half = (interval[1] - interval[0]) / 2;
  if (half <= Math.abs(center) * 1e-9) return `${number(center)} ± 0`;
  const digits = Math.max(0, Math.min(12, 1 - Math.floor(Math.log10(half))));
  return `${center.toFixed(digits)} ± ${half.toFixed(digits)}`;
}

// A dot for each repeat on the scale of all repeats, with a line at the mean.
function dots(configuration, [low, high]) {
  const at = (value) => 6 + (188 * (value - low)) / (high - low || 1);
  const values = Object.values(configuration.values);
  return svg(
    "svg",
    {
      class: "dots",
      viewBox: "0 0 200 20",
      role: "img",
      "aria-label": `Repeats: ${values.map((value) => number(value)).join(", ")}`,
    },
    svg("line", { x1: at(configuration.mean), x2: at(configuration.mean), y1: 2, y2: 18 }),
    ...values.map((value) => svg("circle", { cx: at(value), cy: 10, r: 4 })),
  );
}

function drawConfigurations() {
  const confirmed = store.study.confirmed.map((each) => ({ ...each, isConfirmation: true }));
  const found = [...store.study.configurations, ...confirmed];
  $("configurations").hidden = !found.length;
  if (!found.length) return;
  const values = found.flatMap((each) => Object.values(each.values)).filter(isNumber);
  const scale = [Math.min(...values), Math.max(...values)];
  const names = [...new Set(found.flatMap((each) => Object.keys(each.params)))];
  const standing = (each) =>
    each.comparison
      ? each.comparison.verdict === "better"
        ? "leader is better"
        : each.comparison.verdict
      : each.state === "complete"
        ? "leads"
        : each.state;
  const keyOf = (each) => `${each.isConfirmation ? "confirmed-" : ""}${each.number}`;
  const kept = new Map([...configurationsGrid.rows].map(([key, row]) => [key, row.record]));
  const same = found.map((each) =>
    JSON.stringify([kept.get(keyOf(each))?.own, null]) === JSON.stringify([[each, scale], null])
      ? kept.get(keyOf(each))
      : { ...each, own: [each, scale] },
  );
  configurationsGrid.update(
    [
      plain(
        "number",
        "configuration",
        true,
        (each) => each.number,
        (each) => `${each.number}${each.isConfirmation ? " (confirmed)" : ""}`,
      ),
      {
        ...plain(
          "mean",
          `mean ${store.study.objective} ± half of the 95% interval`,
          true,
          (each) => each.mean,
          (each) => intervalText(each.mean, each.interval),
        ),
        greatestFirst: store.study.direction === "maximize",
      },
      plain(
        "dots",
        "each repeat",
        false,
        (each) => each.std,
        (each) => (isNumber(each.mean) ? dots(each, scale) : "-"),
      ),
      plain("repeats", "repeats", true, (each) => Object.keys(each.values).length),
      plain(
        "difference",
        "difference to the leader",
        true,
        (each) => each.comparison?.difference,
        (each) => (each.comparison ? intervalText(each.comparison.difference, each.comparison.interval) : "-"),
      ),
      plain("verdict", "comparison", false, standing),
      ...names.map((name) =>
        plain(
          `param:${name}`,
          name,
          false,
          (each) => each.params[name],
          (each) => choice(each.params[name] ?? "-"),
        ),
      ),
      plain(
        "trials",
        "trials",
        false,
        (each) => each.trials[0],
        (each) =>
          each.isConfirmation
            ? each.trials.join(", ")
            : h("span", {}, ...each.trials.flatMap((number, index) => [index ? ", " : null, trialLink(number)])),
      ),
    ],
    same,
    keyOf,
  );
}

// ---- Pictures ----

const drawn = { parallel: { show: () => null } };
// Those of Okabe and Ito, which people with the common kinds of colour blindness tell apart.
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676"];
const DARK = ["#56B4E9", "#E69F00", "#2BC79B", "#E39AC4", "#F0E442", "#FF8A5C", "#AEB7C2"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const SINGLE_CURVES = 24; // above this, the curves of one state are one trace

const colour = (index) => (isDark() ? DARK : LIGHT)[index % LIGHT.length];
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most = 60) => escaped(text.length > most ? `${text.slice(0, most - 1)}…` : text);

function plot(id, traces, axesOf, label, more = {}) {
  const ink = isDark() ? "#e6e9ed" : "#1b1f24";
  const grid = isDark() ? "#333a43" : "#e3e3e3";
  const axis = (given) => ({
    showline: true,
    linecolor: ink,
    gridcolor: grid,
    zeroline: false,
    automargin: true,
    exponentformat: "e",
    ...given,
  });
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
    xaxis: axis(axesOf.x),
    yaxis: axis(axesOf.y),
  };
  $(id).setAttribute("aria-label", label);
  return Plotly.react(id, traces, layout, { displayModeBar: false, displaylogo: false, responsive: true });
}

// Axes of whole numbers have a tick at each number while there are few.
const wholeNumbers = (title, most) => ({
  title: { text: title },
  tickformat: ",d",
  rangemode: "tozero",
  ...(most <= 15 ? { dtick: 1 } : {}),
});

function metricsOf(list) {
  const names = new Set();
  for (const trial of list) {
    const ends = [trial.epochs[0], trial.epochs[trial.epochs.length - 1]];
    for (const epoch of ends) for (const name of Object.keys(epoch || {})) if (name !== "epoch") names.add(name);
  }
  return [...names];
}

function setOptions(select, names, wanted) {
  const kept = names.includes(select.value) ? select.value : wanted;
  section2(select, names, (each) => each.map((name) => h("option", { value: name }, name)));
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
    const from = attempt.start_step || 0;
    const to = attempt.end_step ?? epochsDone(trial) * perEpoch;
    const part = { from, to, before, seconds: trial.own.spans[index] };
    before += part.seconds;
    return part;
  });
  return (step, isStart) => {
    const part =
      [...parts].reverse().find(({ from, to }) => (isStart ? step >= from : step > from) && step <= to) ||
      parts[parts.length - 1];
    if (!part) return 0;
    const share = part.to > part.from ? Math.min(1, Math.max(0, (step - part.from) / (part.to - part.from))) : 1;
    return part.before + share * part.seconds;
  };
}

function curve(trial, metric, axis, smoothing) {
  const at = positions(trial, axis);
  const perEpoch = trial.own.stepsPerEpoch || 1;
  const line = { x: [], y: [], text: [], broken: [] };
  let average = 0;
  let weight = 0;
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
  if (after <= 0) return line.y[after < 0 ? line.y.length - 1 : 0];
  const [x0, x1, y0, y1] = [line.x[after - 1], line.x[after], line.y[after - 1], line.y[after]];
  return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0 || 1);
}

function marks(list, lines, axis) {
  const resumed = { x: [], y: [], text: [] };
  const broken = { x: [], y: [], text: [] };
  list.forEach((trial, index) => {
    const line = lines[index];
    if (!line.x.length) return;
    const at = positions(trial, axis);
    for (const attempt of trial.own.resumes) {
      const x = at(attempt.start_step, true);
      resumed.x.push(x);
      resumed.y.push(between(line, x));
      resumed.text.push(`trial ${trial.number}: attempt ${attempt.number} resumes at step ${attempt.start_step}`);
    }
    const height = line.y.find(isNumber);
    for (const x of height === undefined ? [] : line.broken) {
      broken.x.push(x);
      broken.y.push(height);
      broken.text.push(`trial ${trial.number}: NaN or infinite`);
    }
  });
  const ink = isDark() ? "#ffffff" : "#000000";
  const trace = (points, name, symbol, color) => ({
    type: "scatter",
    mode: "markers",
    name,
    x: points.x,
    y: points.y,
    hovertext: points.text,
    hoverinfo: "text",
    marker: { symbol, size: 10, color, line: { width: 1.5, color } },
  });
  return [
    ...(resumed.x.length ? [trace(resumed, "resumed here", "diamond-open", ink)] : []),
    ...(broken.x.length ? [trace(broken, "NaN or infinite", "x-thin", "#D55E00")] : []),
  ];
}

function curveTraces(list, metric, axis, smoothing, named) {
  const lines = list.map((trial) => curve(trial, metric, axis, smoothing));
  if (list.length > SINGLE_CURVES) return [...groupedTraces(list, lines), ...marks(list, lines, axis)];
  const traces = list.flatMap((trial, index) => {
    const color = colour(index);
    const look = { type: "scatter", name: short(named(trial)), hoverinfo: "text", legendgroup: String(index) };
    const smooth = {
      ...look,
      mode: lines[index].x.length > 60 ? "lines" : "lines+markers",
      x: lines[index].x,
      y: lines[index].y,
      hovertext: lines[index].text.map(escaped),
      marker: { size: 4 },
      line: { color, width: 2, dash: DASHES[index % DASHES.length] },
    };
    if (!smoothing) return [smooth];
    const raw = curve(trial, metric, axis, 0);
    return [
      {
        ...look,
        mode: "lines",
        x: raw.x,
        y: raw.y,
        hoverinfo: "skip",
        showlegend: false,
        opacity: 0.3,
        line: { color, width: 1 },
      },
      smooth,
    ];
  });
  return [...traces, ...marks(list, lines, axis)];
}

function groupedTraces(list, lines) {
  const leading = new Set(leaders());
  const groups = new Map();
  list.forEach((trial, index) => {
    const name = leading.has(trial.number) ? "leaders" : trial.state;
    if (!groups.has(name)) groups.set(name, { x: [], y: [], text: [] });
    const group = groups.get(name);
    group.x.push(...lines[index].x, null);
    group.y.push(...lines[index].y, null);
    group.text.push(...lines[index].text, "");
  });
  const names = [...groups.keys()].sort((a, b) => (a === "leaders") - (b === "leaders"));
  return names.map((name, index) => ({
    type: "scatter",
    mode: "lines",
    name,
    ...groups.get(name),
    hovertext: groups.get(name).text,
    text: undefined,
    hoverinfo: "text",
    line: {
      color: name === "leaders" ? colour(0) : colour([6, 1, 2, 4][index % 4]),
      width: name === "leaders" ? 2.5 : 0.7,
    },
  }));
}

function curveAxes(list, axis, metric) {
  const most = Math.max(0, ...list.map(epochsDone));
  if (axis === "time")
    return {
      x: { title: { text: "training time, seconds" }, rangemode: "tozero" },
      y: { title: { text: short(metric, 40) } },
    };
  return {
    x: wholeNumbers(axis === "step" ? "steps" : "epochs finished", axis === "step" ? 99 : most),
    y: { title: { text: short(metric, 40) } },
  };
}

function drawCurves() {
  const list = chosenTrials().filter((trial) => trial.epochs.length);
  const other = store.head.compared;
  const all = trials().some((trial) => trial.epochs.length);
  $("curves").hidden = !all;
  if (!all) return;
  setOptions($("curves-metric"), metricsOf(trials()), objectives()[0].name);
  const [metric, axis, smoothing] = [
    $("curves-metric").value,
    $("curves-axis").value,
    Number($("curves-smoothing").value),
  ];
  const traces = curveTraces(
    list,
    metric,
    axis,
    smoothing,
    (trial) => `trial ${trial.number}${historyOf(trial) === "-" ? "" : ` (${historyOf(trial)})`}`,
  );
  for (const trial of other ? other.trials.map(derived).filter((each) => each.epochs.length) : []) {
    const line = curve(trial, metric, axis, smoothing);
    traces.unshift({
      type: "scatter",
      mode: "lines",
      name: short(`${other.study.study}: trial ${trial.number}`),
      x: line.x,
      y: line.y,
      hovertext: line.text,
      hoverinfo: "text",
      line: { color: "#767e88", dash: "dashdot", width: 1.5 },
    });
  }
  const numbers = list.map((trial) => trial.number);
  const named = numbers.slice(0, 12).join(", ") + (numbers.length > 12 ? ` and ${numbers.length - 12} more` : "");
  $("curves-text").textContent = list.length
    ? `${metric} of ${numbers.length === 1 ? "trial" : "trials"} ${named}.${axis === "time" ? " Times are interpolated within each attempt." : ""}`
    : "No chosen trial has finished an epoch. Choose trials in the table.";
  const most = Math.max(1, traces.filter((trace) => trace.showlegend !== false).length);
  plot(
    "curves-picture",
    traces,
    curveAxes(list, axis, metric),
    `${metric} by ${axis} of ${counted(list.length, "trial")}: ${named || "none"}`,
    { showlegend: true, legend: { orientation: "h", y: -0.2, font: { size: most > 12 ? 10 : 12 } } },
  );
}

// Parallel coordinates. Plotly's own need WebGL, which compiles functions from text; the page's policy forbids that.
function drawParallel() {
  const list = trials().filter((trial) => trial.state === "complete" || trial.state === "pruned");
  const shown = axes.cached;
  const isThere = list.length > 1 && shown.length > 1 && shown.some((axis) => axis.isObjective);
  $("parallel").hidden = !isThere;
  drawn.parallel = { show: () => null };
  if (!isThere) return;
  const width = Math.max($("parallel-frame").clientWidth || 600, shown.length * 90);
  const [top, bottom, side] = [46, 300, 55];
  const x = (index) => side + ((width - 2 * side) * index) / (shown.length - 1);
  const scales = shown.map((axis) => scaleOf(axis, top, bottom));
  const root = svg("svg", { class: "parallel", width, height: bottom + 30, viewBox: `0 0 ${width} ${bottom + 30}` });
  const paths = list.map((trial) => {
    const points = shown.map(
      (axis, index) => `${x(index).toFixed(1)},${scales[index].at(axis.value(trial)).toFixed(1)}`,
    );
    return [
      trial.number,
      svg("path", { d: `M${points.join("L")}` }, svg("title", {}, `trial ${trial.number}: ${params(trial.params)}`)),
    ];
  });
  root.style.setProperty("--faint", Math.max(0.08, Math.min(0.45, 60 / list.length)));
  root.append(...paths.map(([, path]) => path));
  shown.forEach((axis, index) => root.append(parallelAxis(axis, scales[index], x(index), top, bottom, index % 2)));
  $("parallel-picture").replaceChildren(root);
  $("parallel-picture").setAttribute(
    "aria-label",
    `A line for each of ${list.length} trials over ${shown.map((axis) => axis.label).join(", ")}`,
  );
  drawn.parallel.show = (numbers) => {
    const marked = new Set(chosenTrials().map((trial) => trial.number));
    for (const [number, path] of paths) {
      path.classList.toggle("left-out", !numbers.has(number));
      path.classList.toggle("chosen", marked.has(number));
    }
    for (const brush of root.querySelectorAll(".brush"))
      placeBrush(brush, shown[brush.dataset.index], scales[brush.dataset.index]);
  };
  root.querySelectorAll(".brush").forEach((brush, index) => {
    brush.dataset.index = index;
  });
}

function scaleOf(axis, top, bottom) {
  const missing = bottom + 22;
  if (axis.kind === "choice") {
    const names = axis.choices.map((value) => JSON.stringify(value));
    const step = (bottom - top) / names.length;
    return {
      ticks: axis.choices.map((value, index) => [choice(value), bottom - (index + 0.5) * step]),
      at: (value) => (value === undefined ? missing : bottom - (names.indexOf(JSON.stringify(value)) + 0.5) * step),
      within: (high, low) =>
        new Set(
          names.filter((_, index) => {
            const y = bottom - (index + 0.5) * step;
            return y >= high && y <= low;
          }),
        ),
      ends: (range) => {
        const ys = names.flatMap((name, index) => (range.has(name) ? [bottom - (index + 0.5) * step] : []));
        return ys.length ? [Math.min(...ys) - step / 2, Math.max(...ys) + step / 2] : [bottom, bottom];
      },
    };
  }
  const to = (value) => (axis.log ? Math.log(value) : value);
  const [low, high] = [to(axis.low), to(axis.high)];
  const at = (value) =>
    value === undefined ? missing : bottom - ((bottom - top) * (to(value) - low)) / (high - low || 1);
  const back = (y) => {
    const value = low + ((bottom - y) / (bottom - top)) * (high - low);
    return Number((axis.log ? Math.exp(value) : value).toPrecision(4));
  };
  return {
    at,
    ticks: [
      [number(axis.low, 4), bottom],
      [number(back((top + bottom) / 2), 3), (top + bottom) / 2],
      [number(axis.high, 4), top],
    ],
    within: (first, last) => [back(last), back(first)],
    ends: ([least, greatest]) => [
      Number.isFinite(greatest) ? Math.max(top, at(greatest)) : top,
      Number.isFinite(least) && (!axis.log || least > 0) ? Math.min(bottom, at(least)) : bottom,
    ],
  };
}

function parallelAxis(axis, scale, x, top, bottom, isOdd) {
  const hold = svg("rect", {
    class: "hold",
    x: x - 14,
    y: top - 4,
    width: 28,
    height: bottom - top + 8,
    "data-axis-brush": axis.key,
  });
  let from = null;
  const yOf = (event) => {
    const y = event.clientY - hold.getBoundingClientRect().top + top - 4;
    return y < top + 6 ? top : y > bottom - 6 ? bottom : y;
  };
  hold.addEventListener("pointerdown", (event) => {
    from = yOf(event);
    hold.setPointerCapture(event.pointerId);
  });
  hold.addEventListener("pointerup", (event) => {
    const to = yOf(event);
    setRange(axis.key, Math.abs(to - from) < 4 ? null : scale.within(Math.min(from, to), Math.max(from, to)));
    from = null;
  });
  hold.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = yOf(event);
    group.querySelector(".brush").setAttribute("y", Math.min(from, to));
    group.querySelector(".brush").setAttribute("height", Math.abs(to - from));
  });
  const label = axis.label.length > 18 ? `${axis.label.slice(0, 17)}…` : axis.label;
  const group = svg(
    "g",
    {},
    svg("line", { class: "axis", x1: x, x2: x, y1: top, y2: bottom }),
    svg("text", { x, y: isOdd ? 14 : 30, "text-anchor": "middle" }, label, svg("title", {}, axis.label)),
    ...scale.ticks
      .slice(0, 12)
      .map(([text, y]) => svg("text", { x: x + 4, y: y + 4 }, text.length > 12 ? `${text.slice(0, 11)}…` : text)),
    svg("rect", { class: "brush", x: x - 8, width: 16, y: top, height: 0 }),
    hold,
  );
  return group;
}

function placeBrush(brush, axis, scale) {
  const range = filters.ranges.get(axis.key);
  const [first, last] = range ? scale.ends(range) : [0, 0];
  brush.setAttribute("y", first);
  brush.setAttribute("height", Math.max(0, last - first));
}

// A parameter against an objective. Trials that were trained longer or shorter than the most are drawn apart.
function drawScatter() {
  const parameters = axes.cached.filter((axis) => !axis.isObjective);
  const measured = axes.cached.filter((axis) => axis.isObjective);
  const list = trials().filter((trial) => ["complete", "pruned"].includes(trial.state));
  const isThere = parameters.length && measured.length && list.length > 1;
  $("scatter").hidden = !isThere;
  if (!isThere) return;
  setOptions(
    $("scatter-parameter"),
    parameters.map((axis) => axis.label),
    parameters[0].label,
  );
  setOptions(
    $("scatter-objective"),
    measured.map((axis) => axis.label),
    measured[0].label,
  );
  $("scatter-objectives").hidden = measured.length < 2;
  const axis = parameters.find((each) => each.label === $("scatter-parameter").value);
  const objective = measured.find((each) => each.label === $("scatter-objective").value);
  const groups = new Map();
  for (const trial of list) {
    const [x, y] = [axis.value(trial), objective.value(trial)];
    if (x === undefined || !isNumber(y)) continue;
    const name =
      trial.state === "pruned"
        ? "pruned (at its last epoch)"
        : `complete, ${counted(trial.target ?? epochsDone(trial), "epoch")}${trial.own.isExtended ? " (extended)" : ""}`;
    if (!groups.has(name)) groups.set(name, { x: [], y: [], text: [], ids: [] });
    const group = groups.get(name);
    group.x.push(axis.kind === "choice" ? short(choice(x), 30) : x);
    group.y.push(y);
    group.text.push(short(`trial ${trial.number}: ${axis.label}=${choice(x)}, ${objective.label}=${number(y)}`, 200));
    group.ids.push(String(trial.number));
  }
  const symbols = ["circle", "square-open", "diamond-open", "triangle-up-open", "x-open"];
  const names = [...groups.keys()].sort();
  const traces = names.map((name, index) => ({
    type: "scatter",
    mode: "markers",
    name,
    x: groups.get(name).x,
    y: groups.get(name).y,
    ids: groups.get(name).ids,
    hovertext: groups.get(name).text,
    hoverinfo: "text",
    marker: { symbol: symbols[index % symbols.length], color: colour(index), size: 8 },
  }));
  const x = {
    title: { text: short(axis.label) },
    ...(axis.kind === "choice" ? { type: "category" } : { type: axis.log ? "log" : "linear" }),
    ...(axis.whole && !axis.log ? { tickformat: "d" } : {}),
  };
  plot(
    "scatter-picture",
    traces,
    { x, y: { title: { text: short(objective.label, 40) } } },
    `${objective.label} by ${axis.label} of ${counted(list.length, "trial")}`,
    { showlegend: names.length > 1 },
  ).then((element) => {
    element.removeAllListeners("plotly_click");
    element.on("plotly_click", ({ points }) => {
      location.hash = `trial-${points[0].id}`;
    });
  });
}

function drawImportance() {
  const [found] = store.head.importance || [];
  $("importance").hidden = !found;
  if (!found) return;
  const shares = [...found.shares].reverse();
  const trace = {
    type: "bar",
    orientation: "h",
    x: shares.map(([, share]) => share),
    y: shares.map(([name]) => short(name, 30)),
    marker: { color: colour(0) },
    hovertemplate: "%{y}: %{x:.1%}<extra></extra>",
  };
  $("importance-text").textContent =
    `${found.shares.map(([name, share]) => `${name} ${Math.round(share * 100)}%`).join(", ")}: share of each parameter in being among the best of ${counted(found.trials, "complete trial")} for ${found.objective} (PED-ANOVA).`;
  plot(
    "importance-picture",
    [trace],
    { x: { tickformat: ".0%", rangemode: "tozero" }, y: {} },
    $("importance-text").textContent,
  );
}

// ---- The study's other sections ----

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const deviation = (values) =>
  values.length > 1
    ? Math.sqrt(values.reduce((sum, each) => sum + (each - mean(values)) ** 2, 0) / (values.length - 1))
    : null;

// Only what is alike is put together: complete trials of one length, and repeats of one configuration.
function spreads() {
  return objectives()
    .flatMap(({ name }) => {
      const byLength = new Map();
      for (const trial of trials().filter((each) => each.state === "complete" && isNumber(valueOf(each, name)))) {
        const length = trial.target ?? epochsDone(trial);
        byLength.set(length, [...(byLength.get(length) || []), valueOf(trial, name)]);
      }
      const rows = [...byLength]
        .sort(([a], [b]) => a - b)
        .map(([length, values]) => [name, `complete trials of ${counted(length, "epoch")}`, values]);
      const repeats = store.study.configurations
        .map((each) => Object.values(each.values))
        .filter((values) => values.length > 1);
      if (name !== objectives()[0].name || !repeats.length) return rows.filter(([, , values]) => values.length > 1);
      return [
        ...rows,
        [
          name,
          "seeds alone: repeats of one configuration, around its mean",
          repeats.flatMap((values) => values.map((each) => each - mean(values))),
          repeats.length,
        ],
      ];
    })
    .map(([name, what, values, groups]) => [
      name,
      what,
      values.length,
      number(Math.min(...values), 4),
      number(groups ? null : median(values), 4),
      number(Math.max(...values), 4),
      number(
        groups
          ? Math.sqrt(values.reduce((sum, each) => sum + each ** 2, 0) / (values.length - groups))
          : deviation(values),
        4,
      ),
    ]);
}

function text(id, words) {
  $(`${id}-text`).hidden = !words;
  $(`${id}-text`).textContent = words || "";
}

const strings = (...names) => names.map((name) => [name, false]);
const numbers = (...names) => names.map((name) => [name, true]);

function attemptRows(list, isOwn) {
  return list.flatMap((trial) =>
    trial.attempts.map((attempt, index) => [
      ...(isOwn ? [] : [trialLink(trial.number)]),
      String(attempt.number),
      stateOf(attempt.outcome || "running"),
      number(attempt.start_step),
      number(attempt.end_step),
      moment(attempt.started_at),
      (attempt.outcome === "lost" ? "at most " : "") + duration(trial.own.spans[index]),
      `${attempt.host}, pid ${attempt.pid ?? "-"}`,
      lastLine(attempt.error) || (attempt.number <= trial.anew_after ? "not resumed: the definition changed" : "-"),
    ]),
  );
}
const ATTEMPTS = [
  ...strings("attempt", "outcome"),
  ...numbers("from step", "to step"),
  ...strings("began (UTC)"),
  ...numbers("worked"),
  ...strings("process", "reason"),
];

function verifiedRows(trial) {
  const found = trial.verification;
  return [
    ...(found
      ? [
          [
            found.mode === "interrupt" ? "verified: killed and resumed" : "verified: replayed",
            found.verdict,
            moment(found.checked_at),
            found.message || "-",
          ],
        ]
      : []),
    ...trial.audits.map((audit) => [
      `audited from step ${audit.from_step} to ${audit.to_step}`,
      audit.alike ? "identical" : "differs",
      "-",
      "-",
    ]),
  ];
}
const VERIFIED = strings("check", "verdict", "when (UTC)", "message");

const lengthRows = (trial) =>
  trial.lengths.map((each) => [
    String(each.epochs),
    String(each.trained),
    each.state,
    each.values ? params(each.values) : number(each.value),
    digestOf(each.digest),
  ]);
const LENGTHS = [
  ...numbers("length in epochs", "epochs trained"),
  ...strings("state"),
  ...numbers("value"),
  ...strings("digest"),
];

const evaluatedRows = (trial) =>
  trial.evaluations.map((each) => [
    each.data,
    String(each.step),
    String(each.epoch),
    moment(each.evaluated_at),
    params(each.metrics),
  ]);
const EVALUATED = [...strings("data"), ...numbers("step", "after epoch"), ...strings("evaluated (UTC)", "metrics")];

function perTrial(id, caption, columns, rowsOf, chosenList) {
  const rows = chosenList.flatMap((trial) => rowsOf(trial).map((row) => [trial.number, ...row]));
  const key = rows.length ? rows.map((row) => row.map((cell) => cell?.textContent ?? cell)) : [];
  section(id, key, () =>
    table(
      caption,
      [...numbers("trial"), ...columns],
      rows.map(([number, ...row]) => [trialLink(number), ...row]),
    ),
  );
}

function shownSetting(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(shownSetting).join(", ") || "none";
  if (typeof value === "object")
    return (
      Object.entries(value)
        .map(([name, each]) => `${name}=${shownSetting(each)}`)
        .join(", ") || "none"
    );
  return String(value);
}

function rangeText(range) {
  if (range.kind === "choice") return range.choices.map(choice).join(", ");
  return `${number(range.low)} to ${number(range.high)}${range.log ? ", logarithmic" : range.step ? `, step ${range.step}` : ""}`;
}

function drawDetails() {
  const [head, list] = [store.head, trials()];
  section("compared", head.compared ? comparison(head.compared.study) : null, (rows) =>
    table(
      "Side by side",
      [
        ["", false],
        [store.study.study, false],
        [head.compared.study.study, false],
      ],
      rows,
    ),
  );
  section("spread", spreads(), (rows) =>
    table(
      "Spread",
      [...strings("objective", "of"), ...numbers("values", "least", "median", "greatest", "standard deviation")],
      rows,
    ),
  );
  const decisions = new Map(
    list.flatMap((trial) =>
      trial.rungs
        .filter((rung) => rung.decision)
        .map(({ decision }) => [`${decision.first} ${decision.epochs}`, decision]),
    ),
  );
  section(
    "rungs",
    [...decisions.values()].sort((a, b) => a.first - b.first || a.epochs - b.epochs),
    (found) =>
      table(
        "Rungs",
        [
          ...numbers("from trial", "bracket", "after epoch", "trials compared"),
          ...strings("promoted", "decided (UTC)"),
        ],
        found.map((each) => {
          const promoted = each.compared.filter((trial) => trial.promoted);
          return [
            String(each.first),
            String(each.bracket),
            String(each.epochs),
            String(each.compared.length),
            promoted.map((trial) => `${trial.number} (${number(trial.value)})`).join(", ") || "none",
            moment(each.decided_at),
          ];
        }),
      ),
  );
  perTrial(
    "lengths",
    "Lengths",
    LENGTHS,
    lengthRows,
    list.filter((trial) => trial.lengths.length > 1),
  );
  const through = new Set(["complete", "pruned", "paused", "failed", null]);
  const interrupted = list.filter((trial) => trial.attempts.some((attempt) => !through.has(attempt.outcome)));
  section(
    "interrupted",
    interrupted.map((trial) => [trial.number, trial.attempts]),
    () => table("Attempts", [...numbers("trial"), ...ATTEMPTS], attemptRows(interrupted, false)),
  );
  perTrial("verified", "Verifications and audits", VERIFIED, verifiedRows, list);
  text("verified", head.exactness);
  $("verified").hidden = false;
  perTrial(
    "evaluated",
    "Evaluations",
    EVALUATED,
    evaluatedRows,
    list.filter((trial) => trial.evaluations.length),
  );
  const settings = Object.entries(head.settings).map(([name, value]) => [name, shownSetting(value)]);
  const space = Object.entries(head.space).map(([name, range]) => [
    name,
    rangeText(range),
    String(list.filter((trial) => name in trial.params).length),
  ]);
  section("settings", [settings, space], () =>
    h(
      "div",
      {},
      table("Settings", strings("setting", "value"), settings),
      ...(space.length ? [table("Parameters", [...strings("parameter", "range"), ...numbers("trials")], space)] : []),
    ),
  );
  section("workers", head.workers, (found) =>
    table(
      "Workers",
      [...strings("process", "engine"), ...numbers("slots"), ...strings("joined (UTC)", "now")],
      found.map((each) => [
        `${each.host}, pid ${each.pid}`,
        each.engine,
        String(each.slots),
        moment(each.joined_at),
        each.live
          ? "present"
          : each.left_at
            ? `left ${moment(each.left_at)}${each.error ? `: ${lastLine(each.error)}` : ""}`
            : "lost",
      ]),
    ),
  );
  section("environment", [head.environments, head.identity], () =>
    h(
      "div",
      {},
      table(
        "Environments",
        [...strings("hosts", "versions", "processor", "devices"), ...numbers("attempts")],
        head.environments.map((each) => [
          each.hosts.join(", "),
          params(each.versions),
          each.processor || "-",
          each.devices.join(", ") || "-",
          String(each.attempts),
        ]),
      ),
      table(
        "Identity",
        strings("item", "value"),
        head.identity.map(([name, value]) => [name, h("code", {}, value)]),
      ),
    ),
  );
  section("commands", head.commands, commandList);
}

function comparison(other) {
  const best = (status) => (status.best ? `trial ${status.best.number}: ${number(status.best.value)}` : "none");
  const finished = (status) => `${status.complete + status.pruned + status.failed} of ${status.target}`;
  return [
    ["finished trials", finished],
    ["best", best],
    ["parameters of the best", (status) => (status.best ? params(status.best.params) : "-")],
  ].map(([name, of]) => [name, of(store.study), of(other)]);
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
  const left = head.seconds_left ? ` · about ${duration(head.seconds_left)} left` : "";
  $("lead").textContent =
    `${goal} · ${study.complete + study.pruned + study.failed} of ${study.target} trials done${left}`;
  $("answer").textContent = head.answer;
  section2($("notices"), head.notices, (found) =>
    found.map((each) => h("p", { class: "warning" }, h("strong", {}, "Note: "), each)),
  );
  section2(
    $("counts"),
    STATES.map((state) => study[state]),
    () =>
      STATES.filter((state) => study[state]).map((state) =>
        h("div", {}, h("dt", {}, state), h("dd", { id: `count-${state}` }, String(study[state]))),
      ),
  );
  axes.cached = axes();
  drawConfigurations();
  $("trials").hidden = !store.trials.size;
  if (!trialsGrid.sortedBy)
    [trialsGrid.sortedBy, trialsGrid.descending] = [
      `value:${objectives()[0].name}`,
      objectives()[0].direction === "maximize",
    ];
  trialsGrid.update(trialColumns(), trials(), (trial) => String(trial.number));
  drawFilters();
  showChoice();
  drawDetails();
  drawPictures();
  applyFilters();
  const found = [...document.querySelectorAll("#study-view section:not([hidden])")].map((each) => [
    each.id,
    each.querySelector("h2").textContent,
  ]);
  section2($("sections"), found, () => found.map(([id, name]) => h("li", {}, h("a", { href: `#${id}` }, name))));
}

function drawPictures() {
  drawCurves();
  drawParallel();
  drawScatter();
  drawImportance();
}

const BAR_SHARE = 0.02; // least share of the timeline's width, so that a short attempt is seen

function drawTrial(trial) {
  const { own } = trial;
  $("heading").textContent = `Trial ${trial.number} of ${trial.study}`;
  document.title = `trial ${trial.number} of ${trial.study} · sweeper`;
  const pauses = trial.attempts.map((attempt, index) => {
    const before = index && trial.attempts[index - 1].ended_at;
    return before ? Math.max(0, (Date.parse(attempt.started_at) - Date.parse(before)) / 1000) : 0;
  });
  const paused = pauses.reduce((sum, each) => sum + each, 0);
  const epochs = trial.target ? `${epochsDone(trial)} of ${trial.target}` : epochsDone(trial);
  $("lead").textContent =
    `${epochs} epochs · ${duration(own.worked)} of work in ${counted(trial.attempts.length, "attempt")}${paused ? `, ${duration(paused)} of pauses between them` : ""}`;
  const measured = trial.values ? Object.entries(trial.values) : [[objectives()[0].name, trial.value]];
  const began = trial.warm_start ? [["began from", `${trial.warm_start.path} (${trial.warm_start.kind})`]] : [];
  section2($("trial-facts"), [trial.state, measured, trial.params, trial.digest, trial.code, historyOf(trial)], () =>
    facts([
      ["state", stateOf(trial.state)],
      ...measured.map(([name, value]) => [name, number(value)]),
      ...Object.entries(trial.params).map(([name, value]) => [name, choice(value)]),
      ...(trial.value_of ? [["value of", trial.value_of]] : []),
      ["seed", String(trial.seed)],
      ["digest", h("code", {}, trial.digest || "-")],
      ["code", h("code", {}, trial.code || "-")],
      ...(historyOf(trial) === "-" ? [] : [["history", historyOf(trial)]]),
      ...began,
      ...(trial.output_only.length ? [["not captured", `${trial.output_only.join(", ")} (output only)`]] : []),
    ]),
  );
  $("trial-error").hidden = !trial.error;
  $("trial-error").textContent = trial.error || "";
  const whole = own.worked + paused || 1;
  $("trial-timeline").setAttribute(
    "aria-label",
    `Attempts over time: ${trial.attempts.map((each, index) => `${each.number} ${each.outcome || "running"} after ${duration(own.spans[index])}`).join(", ")}`,
  );
  section2($("trial-timeline"), [trial.attempts, own.spans], () =>
    trial.attempts.flatMap((attempt, index) => {
      const bar = (seconds, name, words) => {
        const span = h("span", { class: name, title: words }, name === "pause" ? "" : words);
        span.style.flexGrow = Math.max(seconds / whole, BAR_SHARE);
        span.style.flexBasis = "0";
        return span;
      };
      const words = `${attempt.number}: ${attempt.outcome || "running"}, ${duration(own.spans[index])}`;
      return [
        ...(pauses[index] ? [bar(pauses[index], "pause", `pause of ${duration(pauses[index])}`)] : []),
        bar(own.spans[index], attempt.outcome || "running", words),
      ];
    }),
  );
  section2($("trial-attempts"), trial.attempts, () => [
    table("Attempts of the trial", ATTEMPTS, attemptRows([trial], true)),
  ]);
  section("trial-checkpoints", trial.checkpoints, (found) =>
    table(
      "Checkpoints",
      [...numbers("step", "after epoch", "size"), ...strings("digest", "path")],
      found.map((each) => [
        String(each.step),
        String(each.epoch),
        bytes(each.bytes),
        h("code", {}, each.digest),
        h("code", {}, each.path),
      ]),
    ),
  );
  section("trial-rungs", trial.rungs, (found) =>
    table(
      "Rungs",
      [...numbers("after epoch", "value"), ...strings("decision", "compared")],
      found.map((each) => [
        String(each.epochs),
        number(each.value),
        each.promoted === null ? "waits for the other trials" : each.promoted ? "promoted" : "ended here",
        each.decision ? counted(each.decision.compared.length, "trial") : "-",
      ]),
    ),
  );
  section("trial-lengths", trial.lengths.length > 1 ? trial.lengths : null, () =>
    table("Lengths", LENGTHS, lengthRows(trial)),
  );
  section("trial-verified", verifiedRows(trial), (rows) => table("Verifications and audits", VERIFIED, rows));
  section("trial-evaluated", trial.evaluations, () => table("Evaluations", EVALUATED, evaluatedRows(trial)));
  const files = ["read", "written"].flatMap((use) =>
    trial.files[use].map((file) => [file.path, use, file.digest ?? "-"]),
  );
  files.push(...trial.files.notices.map((notice) => [notice, "noticed", "-"]));
  section("trial-files", files, (rows) =>
    table(
      "Files",
      strings("path", "use", "digest"),
      rows.map(([path, use, digest]) => [h("code", {}, path), use, h("code", {}, digest)]),
    ),
  );
  section("trial-commands", trial.commands.length ? trial.commands.map((command) => [command, ""]) : null, commandList);
  drawTrialCurves(trial);
  showLog(trial, trial.log);
}

function drawTrialCurves(trial) {
  $("trial-curves").hidden = !trial.epochs.length;
  if (!trial.epochs.length) return;
  const objective = objectives()[0].name;
  const names = metricsOf([trial]).sort((a, b) => (b === objective) - (a === objective));
  const isAlike = (name) => name.replace(/^val_/, "") === objective.replace(/^val_/, "");
  const lines = names.map((name) => curve(trial, name, "epoch", 0));
  const traces = names.map((name, index) => ({
    type: "scatter",
    mode: "lines+markers",
    name: short(name),
    x: lines[index].x,
    y: lines[index].y,
    visible: isAlike(name) ? true : "legendonly",
    marker: { size: 5 },
    line: { color: colour(index), dash: DASHES[index % DASHES.length] },
  }));
  plot(
    "trial-picture",
    [...traces, ...marks([trial], lines.slice(0, 1), "epoch")],
    curveAxes([trial], "epoch", objective),
    `Metrics of trial ${trial.number} by epoch; the table of epochs has the values`,
    { showlegend: true },
  );
  section2($("trial-epochs"), trial.epochs, () => [
    table(
      "Epochs",
      numbers("epoch", ...names),
      trial.epochs.map((epoch) => [String(epoch.epoch + 1), ...names.map((name) => number(epoch[name]))]),
    ),
  ]);
}

function showLog(trial, log) {
  $("trial-log").hidden = !log;
  const pre = $("trial-log-text");
  if (log && pre.textContent !== log) {
    const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    pre.textContent = log;
    if (isAtEnd) pre.scrollTop = pre.scrollHeight;
  }
}

function drawStudies() {
  $("heading").textContent = "Studies";
  document.title = "Studies · sweeper";
  const found = store.head.studies;
  $("lead").textContent = found.length
    ? `${counted(found.length, "study").replace("studys", "studies")} in this database`
    : "There is no study in this database yet. `sweeper run FILE` starts one.";
  $("studies").hidden = !found.length;
  if (!found.length) return;
  studiesGrid.update(
    [
      plain(
        "study",
        "study",
        false,
        (each) => each.study,
        (each) => h("a", { href: each.address }, each.study),
      ),
      plain("objective", "objective", false, (each) =>
        (each.objectives || [{ name: each.objective, direction: each.direction }])
          .map(({ name, direction }) => `${direction} ${name}`)
          .join(", "),
      ),
      plain("target", "trials", true, (each) => each.target),
      ...STATES.map((state) => plain(state, state, true, (each) => each[state])),
      plain(
        "best",
        "best",
        true,
        (each) => each.best?.value,
        (each) =>
          each.best
            ? h(
                "span",
                {},
                `${number(each.best.value)} of `,
                h("a", { href: `${each.address}#trial-${each.best.number}` }, `trial ${each.best.number}`),
              )
            : "-",
      ),
      plain(
        "elsewhere",
        "elsewhere",
        false,
        (each) => each.study,
        (each) =>
          h("a", { href: each.elsewhere, "aria-label": `${each.study} in optuna-dashboard` }, "optuna-dashboard"),
      ),
    ],
    found,
    (each) => each.study,
  );
}

const trialInHash = () => /^#trial-(\d+)$/.exec(location.hash)?.[1];

function draw() {
  if (store.head.studies) return drawStudies();
  const wanted = trialInHash();
  const trial = wanted === undefined ? null : store.trials.get(Number(wanted));
  $("study-view").hidden = Boolean(trial) || wanted !== undefined;
  $("trial-view").hidden = !trial;
  const path = [
    ...(prefix ? [["studies", `${prefix}/`]] : []),
    [store.study.study, wanted === undefined ? null : "#"],
    ...(wanted === undefined ? [] : [[`trial ${wanted}`, null]]),
  ];
  section2($("path"), path.length > 1 ? path : [], () =>
    path.map(([name, href]) => h("li", { "aria-current": href ? null : "page" }, href ? h("a", { href }, name) : name)),
  );
  const elsewhere = $("elsewhere");
  if (elsewhere && store.head.elsewhere) {
    elsewhere.href = store.head.elsewhere + (trial ? `/trials?numbers=${trial.number}` : "");
    elsewhere.textContent = `this ${trial ? "trial" : "study"} in optuna-dashboard`;
  }
  if (trial) drawTrial(trial);
  else if (wanted === undefined) drawStudy();
  else {
    $("heading").textContent = `Trial ${wanted} of ${store.study.study}`;
    $("lead").textContent = "This trial has not begun.";
  }
}

let last = "";
function route() {
  if (!store.study) return;
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
  const answer = await fetch(address, {
    cache: "no-store",
    headers: version ? { "If-None-Match": `"${version}"` } : {},
  });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(`${address} answered ${answer.status}`);
  return answer.json();
}

async function refresh() {
  const payload = await ask(
    store.version ? `${source}?since=${encodeURIComponent(store.version)}` : source,
    store.version,
  );
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
  if (trialInHash() === String(trial.number)) showLog(trial, log);
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
    filters.text = event.target.value.trim();
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
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => store.study && draw());
  const resized = () => {
    drawParallel();
    applyFilters();
  };
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth || !store.study || trialInHash()) return;
    width = innerWidth;
    later(resized);
  });
  const resize = (to) =>
    document
      .querySelectorAll(".js-plotly-plot")
      .forEach((each) => Plotly.relayout(each, to ? { width: to, autosize: false } : { width: null, autosize: true }));
  addEventListener("beforeprint", () => resize(680));
  addEventListener("afterprint", () => resize(0));
}

async function begin() {
  listen();
  last = location.hash;
  const embedded = $("data");
  if (embedded) {
    receive(JSON.parse(embedded.textContent));
    embedded.remove(); // its text is as large as all that was read from it
  } else if (source) receive(await ask(source));
  else return;
  draw();
  trialsGrid.most = Infinity;
  if (store.study && !trialInHash()) later(applyFilters);
  document.documentElement.dataset.drawn = "yes";
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
