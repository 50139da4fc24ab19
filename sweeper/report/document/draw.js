"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const printed = 680;
  const config = { displayModeBar: false, responsive: true, displaylogo: false };
  for (const figure of Object.values(figures)) {
    figure.layout.title = undefined;  // the page's own heading says it
    figure.layout.margin.t = 30;
  }
  const drawn = Object.entries(figures).map(([key, figure]) =>
    Plotly.newPlot(key, figure.data, figure.layout, config));
  const resize = (width) => {
    for (const key of Object.keys(figures)) {
      Plotly.relayout(key, width ? { width: width, autosize: false } : { width: null, autosize: true });
    }
  };
  window.addEventListener("beforeprint", () => resize(printed));
  window.addEventListener("afterprint", () => resize(0));
  Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = "yes"; });
})();
