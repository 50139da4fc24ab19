"use strict";
// Draws the figures, and keeps a page of something that runs up to date: each part of the new page
// that differs is put into the old one where it stands, so that nothing flickers, and what has the
// keyboard's focus, is open or was scrolled stays so.

const drawn = new Map();
const printed = 680;

async function drawFigure(element, text) {
  if (drawn.get(element.id) === text) return;
  drawn.set(element.id, text);
  const figure = JSON.parse(text);
  const layout = Object.assign({}, figure.layout, { autosize: true });
  delete layout.width;
  delete layout.title;  // the page's own heading says it
  layout.margin = Object.assign({}, layout.margin, { t: 30 });
  if (layout.height) element.style.height = `${layout.height}px`;
  // What a reader has hidden or zoomed stays so.
  layout.uirevision = element.id;
  await Plotly.react(element, figure.data, layout, {
    displayModeBar: false, displaylogo: false, responsive: true,
  });
}

// Of a file, the figures are in it; a served page asks for each.
async function drawFigures() {
  const held = document.getElementById("figures");
  if (held) {
    for (const [id, figure] of Object.entries(JSON.parse(held.textContent))) {
      await drawFigure(document.getElementById(id), JSON.stringify(figure));
    }
  }
  for (const element of document.querySelectorAll("[data-figure]")) {
    const answer = await fetch(element.dataset.figure, { cache: "no-cache" });
    if (!answer.ok) throw new Error(`${element.dataset.figure} answered ${answer.status}`);
    await drawFigure(element, await answer.text());
  }
  document.documentElement.dataset.drawn = "yes";
}

function resize(width) {
  for (const id of drawn.keys()) {
    Plotly.relayout(id, width ? { width, autosize: false } : { width: null, autosize: true });
  }
}

window.addEventListener("beforeprint", () => resize(printed));
window.addEventListener("afterprint", () => resize(0));

function keyOf(node) {
  return node.id || node.getAttribute("aria-labelledby") || "";
}

// The node, from `next` on among its siblings, that is to become `wanted`; what is before it goes.
function findAlike(next, wanted) {
  if (wanted.nodeType !== Node.ELEMENT_NODE) {
    return next && next.nodeType === wanted.nodeType ? next : null;
  }
  const key = keyOf(wanted);
  for (let found = next; found; found = found.nextSibling) {
    if (found.nodeType !== Node.ELEMENT_NODE) continue;
    if (found.nodeName === wanted.nodeName && keyOf(found) === key) return found;
    if (!key) return null;
  }
  return null;
}

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    const kept = name === "open" && old.nodeName === "DETAILS";
    if (!kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE || old.id === "connection") return;
  if ("figure" in old.dataset) return;
  patchAttributes(old, fresh);
  patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
  let next = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const found = findAlike(next, wanted);
    if (!found) {
      old.insertBefore(document.importNode(wanted, true), next);
      continue;
    }
    while (next !== found) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
    patch(found, wanted);
    next = found.nextSibling;
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

async function refresh() {
  const answer = await fetch(location.href, { cache: "no-cache" });
  if (!answer.ok) throw new Error(`the page answered ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  patchChildren(document.querySelector("main"), fresh.querySelector("main"));
  if ("refresh" in fresh.body.dataset) document.body.dataset.refresh = fresh.body.dataset.refresh;
  else delete document.body.dataset.refresh;
  await drawFigures();
}

async function keepUpToDate() {
  const seconds = Number(document.body.dataset.refresh || 0);
  if (!seconds) return;
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const connection = document.getElementById("connection");
  if (!document.hidden) {
    try {
      await refresh();
      connection.hidden = true;
    } catch (error) {
      connection.hidden = false;
    }
    document.body.dataset.refreshed = Date.now();
  }
  keepUpToDate();
}

drawFigures().catch((error) => console.error(error)).finally(keepUpToDate);
