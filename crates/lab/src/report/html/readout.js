// Values under the pointer. The page is complete without it.
(function () {
  "use strict";
  const area = document.getElementById("plot-area");
  const box = document.getElementById("readout");
  const source = document.getElementById("plot-data");
  if (!area || !box || !source) return;
  const data = JSON.parse(source.textContent);
  const svg = area.querySelector("svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("y1", data.top);
  line.setAttribute("y2", data.bottom);
  line.setAttribute("stroke", "#808080");
  line.setAttribute("visibility", "hidden");
  svg.append(line);

  function cell(row, kind, text) {
    const element = document.createElement(kind);
    element.textContent = text;
    row.append(element);
  }

  function hide() {
    box.hidden = true;
    line.setAttribute("visibility", "hidden");
  }

  area.addEventListener("pointerleave", hide);
  area.addEventListener("pointermove", function (event) {
    const frame = svg.getBoundingClientRect();
    const x = (event.clientX - frame.left) * data.width / frame.width;
    const y = (event.clientY - frame.top) * data.width / frame.width;
    const share = (x - data.left) / (data.right - data.left) * 1.1 - 0.05;
    const index = Math.round(share * data.last / data.every);
    if (y < data.top || y > data.bottom || index < 0 || index > data.last / data.every) {
      hide();
      return;
    }
    const table = document.createElement("table");
    for (const series of data.series) {
      const point = series.points[index];
      if (!point) continue;
      const row = document.createElement("tr");
      cell(row, "th", series.label);
      cell(row, "td", "step " + point[0]);
      cell(row, "td", point[1]);
      cell(row, "td", point[2]);
      cell(row, "td", "loss " + point[3]);
      cell(row, "td", "probes " + point[4]);
      table.append(row);
    }
    box.replaceChildren(table);
    box.hidden = false;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.setAttribute("visibility", "visible");
    const left = event.clientX - frame.left;
    const flip = left + box.offsetWidth + 24 > frame.width;
    box.style.left = (flip ? Math.max(0, left - box.offsetWidth - 16) : left + 16) + "px";
    box.style.top = Math.max(0, event.clientY - frame.top - box.offsetHeight - 12) + "px";
  });
})();
