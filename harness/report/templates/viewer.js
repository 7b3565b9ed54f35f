"use strict";
(function () {
  const controls = document.getElementById("tree-controls");
  document.documentElement.dataset.ready = "yes";
  if (!controls) return;
  const run = document.getElementById("tree-run");
  const round = document.getElementById("tree-round");
  const place = document.getElementById("tree-place");
  const figures = Array.from(document.querySelectorAll(".tree-round"));

  function show() {
    const own = figures.filter((figure) => figure.dataset.run === run.value);
    round.max = String(own.length - 1);
    if (Number(round.value) > own.length - 1) round.value = round.max;
    figures.forEach((figure) => {
      figure.hidden = figure.dataset.run !== run.value || figure.dataset.round !== round.value;
    });
    place.textContent = Number(round.value) + 1 + " / " + own.length;
  }

  function step(by) {
    round.value = String(Number(round.value) + by);
    show();
  }

  round.max = String(figures.length);
  round.value = round.getAttribute("value");
  run.addEventListener("change", show);
  round.addEventListener("input", show);
  document.getElementById("tree-back").addEventListener("click", () => step(-1));
  document.getElementById("tree-on").addEventListener("click", () => step(1));
  controls.hidden = false;
  show();
})();
